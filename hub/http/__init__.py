"""The HTTP side of the hub: requests and responses.

Starlette and sse-starlette are imported here only; uvicorn here, in `hub.server` and in
`hub.process`.

application    ─ the ASGI application: headers of all responses, lifespan; cors
  └► endpoints    ─ every route: parse, call the hub, answer
       ├► replay    ─ a response that ends after the stored updates: `Prefer: wait=0`
       └► response    ─ opens a stream (`hub.delivery.stream`) on a connection of
                        `hub.server`

All of them use `request`, the parsed request, and `problems`, the error responses.

Belongs here: everything that knows a header or a status.  Does not belong here: who
receives an update, and when; and the bytes of HTTP/1.1 (`hub.server`).
"""
