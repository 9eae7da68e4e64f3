"""The HTTP side of the hub: requests, responses and connections.

Only this package imports Starlette and sse-starlette; uvicorn is imported here and in
`hub.process`.

application    ─ the ASGI application: headers of all responses, lifespan; cors
  └► endpoints    ─ every route: parse, call the hub, answer
       ├► replay    ─ a response that ends after the stored updates: `Prefer: wait=0`
       └► response    ─ opens a stream (`hub.delivery.stream`) on one of these:
            ├ asgi_connection       ─ any server: keeps the task of the request
            └ uvicorn_connection    ─ uvicorn: the task of the request ends early
                 └► uvicorn_protocol    ─ HTTP/1.1 with limits, and detaching
                      └► head_limit · open_connections · sockets    ─ bytes of a head,
                                                     file limit, kernel buffers

All of them use `request`, the parsed request, and `problems`, the error responses.

Belongs here: everything that knows a header, a status or a server.  Does not belong
here: who receives an update, and when.
"""
