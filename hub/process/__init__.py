"""The operating system's side: one process that serves, or several that are supervised.

server    ─ uvicorn with the hub's protocol; file limit, garbage collection, signals
  └► workers    ─ starts processes, restarts those that end, and forwards signals

The first signal is handled by the application (`hub.http.application`), which ends the
streams.
"""
