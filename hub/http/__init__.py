"""The clients' side: HTTP and event streams.  Starlette and sse-starlette are imported here alone, uvicorn also in
`hub.process`.

application    ─ the ASGI application: headers of every answer, CORS, the hub's life
  └► endpoints    ─ every route: parse, ask the hub, answer
       ├► stream    ─ the event stream of one subscriber, and how it catches up
       │    └► parking    ─ a response that outlives its request's task, on uvicorn's connections
       ├► replay    ─ a stream that ends: `Prefer: wait=0`
       └► uvicorn_protocol · open_connections · sockets    ─ bounds on what a connection may send, and how many
"""
