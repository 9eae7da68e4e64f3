"""The HTTP side of the hub: parse bytes, call one function, send an answer.

Starlette and sse-starlette are imported here only; uvicorn in `hub.server`, in
`hub.process` and in `hub.testing`.

embedding    ─ create_app, and what the program around the hub calls
  └► application    ─ the way of each request: headers of all responses, lifespan; cors
       └► endpoints    ─ every route: parse, call the hub, answer
            ├► authorization    ─ what the client of a request may do
            ├► listing          ─ the subscription API
            ├► replay           ─ ends after the stored updates: `Prefer: wait=0`
            └► response         ─ opens a stream (`hub.delivery.stream`) on a connection
                                  of `hub.server`

All of them use `request`, the parsed request, and `problems`, the error responses.

Belongs here: everything that knows a header or a status.  Does not belong here: the
order of a publish or a subscribe (`hub.publishing`, `hub.subscribing`), and the bytes
of HTTP/1.1 (`hub.server`).
"""
