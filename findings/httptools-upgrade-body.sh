#!/bin/sh
# uvicorn with httptools gives an application no body of a POST that has an `Upgrade` header.
#
# Versions: uvicorn 0.54.0, httptools 0.9.0, h11 0.16.0, Python 3.11 or later.
#
# `java.net.http.HttpClient` sends such a request to each http:// address, to offer HTTP/2.  A server may ignore the
# offer, and answers the request then (RFC 9110, 7.8).  One would guess that both parsers of uvicorn do the same.  But
# httptools takes the request for complete after its head.  The application reads an empty body, and answers 200.
#
# Output seen, as it is checked below:
#
#     h11 body=b'topic=a&data=1'
#     httptools body=b''
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet uvicorn==0.54.0 httptools==0.9.0 h11==0.16.0
cat > "$folder/try.py" <<'PYTHON'
import asyncio

import uvicorn

BODY = b"topic=a&data=1"
REQUEST = (
    b"POST / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    b"HTTP2-Settings: AAEAAEAAAAIAAAAAAAMAAAAAAAQBAAAAAAUAAEAA\r\n"
    b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY
)


async def application(scope, receive, send):
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    answer = b"body=%r\n" % body
    headers = [(b"content-length", str(len(answer)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer})


async def main():
    for parser in ("h11", "httptools"):
        config = uvicorn.Config(application, http=parser, ws="none", port=0, lifespan="off", log_level="critical")
        server = uvicorn.Server(config)
        running = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        reader, writer = await asyncio.open_connection(*server.servers[0].sockets[0].getsockname())
        writer.write(REQUEST)
        while not (line := await reader.readline()).startswith(b"body="):
            assert line, "the connection ended"
        print(parser, line.decode().strip(), flush=True)
        writer.close()
        server.should_exit = True
        await running


asyncio.run(main())
PYTHON
timeout 60 "$folder/venv/bin/python" "$folder/try.py" | tee "$folder/seen"
diff - "$folder/seen" <<'SEEN'
h11 body=b'topic=a&data=1'
httptools body=b''
SEEN
