#!/bin/sh
# An HTTP client over a Unix socket leaves a socket open each time that it cannot connect.
#
# Versions: httpx 0.28.1 with httpcore 1.0.9, httpx2 2.16.2 with httpcore2 2.16.2, Python 3.11 or later.
#
# If a service is down, a client over TCP gets ConnectError, and the socket is closed.  Over a Unix socket, the same
# error comes, and the socket stays open until Python collects the error: as long as a program keeps the error, for a
# report or the next attempt, it also keeps a file descriptor.  In a test where warnings are errors, each attempt is a
# ResourceWarning.  The client's own `close()` closes none of them.
#
# Output seen, as it is checked below:
#
#     httpx, TCP: 5 errors kept, 0 sockets open after close()
#     httpx, Unix socket: 5 errors kept, 5 sockets open after close()
#     httpx2, TCP: 5 errors kept, 0 sockets open after close()
#     httpx2, Unix socket: 5 errors kept, 5 sockets open after close()
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check httpx==0.28.1 httpcore==1.0.9 httpx2==2.16.2 httpcore2==2.16.2
cat > try.py <<'PY'
import gc
import os
import socket

import httpx
import httpx2


def open_sockets():
    """How many of this process's files are sockets."""
    links = []
    for name in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:  # the listing itself
            pass
    return sum(link.startswith("socket:") for link in links)


with socket.socket() as unused:  # a port at which nobody listens
    unused.bind(("127.0.0.1", 0))
    port = unused.getsockname()[1]

for library in httpx, httpx2:
    for kind, transport in (
        ("TCP", library.HTTPTransport()),
        ("Unix socket", library.HTTPTransport(uds="nobody-listens-here")),
    ):
        errors = []
        with library.Client(transport=transport) as client:
            for _ in range(5):
                try:
                    client.get(f"http://127.0.0.1:{port}/")
                except library.ConnectError as error:
                    errors.append(error)
        gc.collect()
        print(f"{library.__name__}, {kind}: {len(errors)} errors kept, {open_sockets()} sockets open after close()")
        errors.clear()
        gc.collect()
PY
timeout 60 venv/bin/python try.py | tee seen
diff - seen <<'SEEN'
httpx, TCP: 5 errors kept, 0 sockets open after close()
httpx, Unix socket: 5 errors kept, 5 sockets open after close()
httpx2, TCP: 5 errors kept, 0 sockets open after close()
httpx2, Unix socket: 5 errors kept, 5 sockets open after close()
SEEN
