"""The operating system's side: one process that serves, or several that are kept alive.

server    ─ uvicorn with the hub's connection protocol, the file limit, the garbage collector, the second signal
  └► workers    ─ starts processes, restarts those that end, and passes signals on

The first signal is the application's (`hub.http.application`): it ends the streams.
"""
