"""The server under the hub: bytes and sockets, and no rule of the hub.

    plain    ─ HubProtocol: answers plain requests without ASGI
      └► http1    ─ HttpProtocol: HTTP/1.1 with limits; a response may be detached
           ├► cycle               ─ a request and its response
           ├► head_limit          ─ the bytes of heads and trailers
           ├► open_connections    ─ all connections of a server, and their limit
           └► problem             ─ the bodies of refusals

What a stream writes to, as `hub.delivery.stream.Connection` has it:

    connection    ─ uvicorn: the request's task has ended, the response is detached
    asgi          ─ any server: the request's task lasts as long as its response

`begun` runs the first part of a coroutine without a task, and `socket_options` says how
much the kernel buffers for a client.

Belongs here: what holds for any application.  What the application hands over, such as
the publisher of plain requests, is called and not understood.  Does not belong here:
topics, tokens, limits of clients, and any header that is the hub's own.
"""

from hub.server.plain import HubProtocol

__all__ = ["HubProtocol"]
