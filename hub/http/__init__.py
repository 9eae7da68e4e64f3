"""The clients' side: HTTP and event streams.  Starlette and sse-starlette are imported here alone, uvicorn also in
`hub.process`.

application    ─ the ASGI application: headers of every answer, the hub's life; cors ─ other origins
  └► endpoints    ─ every route: parse, ask the hub, answer
       ├► replay    ─ a stream that ends: `Prefer: wait=0`
       └► response    ─ the head of an event stream, and the choice of its connection
            └► stream    ─ the state machine of one subscriber, which writes to one of these two
                 ├ asgi_connection       ─ on any server: keeps the task of the request
                 └ uvicorn_connection    ─ on uvicorn: outlives the task of the request
                      └► uvicorn_protocol    ─ HTTP/1.1 with bounds; a response may be detached from it
                           └► open_connections · sockets    ─ how many there may be, and what the kernel holds

All of them use `request`, the parsed request, and `problems`, the answers to refused ones.
"""
