#!/bin/sh
# The `send` of granian returns an awaitable that is no coroutine.
#
# Versions: granian 2.8.9, uvicorn 0.54.0, hypercorn 0.18.0, Python 3.11 or later.
#
# ASGI calls `send` an awaitable callable.  In uvicorn and hypercorn it is an `async def`, so `create_task(send(…))`
# works, and programs do that to write without waiting.  On granian the same call raises TypeError, because what `send`
# returns has no `send` and `throw` of its own: it can only be awaited, for example in a coroutine of one's own.
#
# Output seen, as it is checked below:
#
#     granian: is a coroutine: False; can be awaited: True; create_task: TypeError
#     hypercorn: is a coroutine: True; can be awaited: True; create_task: works
#     uvicorn: is a coroutine: True; can be awaited: True; create_task: works
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet granian==2.8.9 uvicorn==0.54.0 hypercorn==0.18.0
cat > "$folder/told.py" <<'PYTHON'
import asyncio
import inspect


async def app(scope, receive, send):
    if scope["type"] != "http":
        raise RuntimeError("only http")
    first = send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    told = f"is a coroutine: {inspect.iscoroutine(first)}; can be awaited: {inspect.isawaitable(first)}"
    try:
        await asyncio.create_task(first)
    except TypeError:
        told += "; create_task: TypeError"
        await first
    else:
        told += "; create_task: works"
    await send({"type": "http.response.body", "body": told.encode()})
PYTHON
cat > "$folder/try.py" <<'PYTHON'
import socket
import subprocess
import time
import urllib.request

for name, command in (
    ("granian", "granian --interface asginl --port {} told:app"),
    ("hypercorn", "hypercorn --bind 127.0.0.1:{} told:app"),
    ("uvicorn", "uvicorn --lifespan off --port {} told:app"),
):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = command.format(port).split()
    server = subprocess.Popen(["venv/bin/" + words[0], *words[1:]], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(200):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/") as answer:
                    print(f"{name}: {answer.read().decode()}", flush=True)
                break
            except OSError:
                time.sleep(0.1)
        else:
            print(f"{name}: no answer", flush=True)
    finally:
        server.terminate()
        server.wait()
PYTHON
(cd "$folder" && timeout 120 venv/bin/python try.py) | tee "$folder/seen"
diff - "$folder/seen" <<'SEEN'
granian: is a coroutine: False; can be awaited: True; create_task: TypeError
hypercorn: is a coroutine: True; can be awaited: True; create_task: works
uvicorn: is a coroutine: True; can be awaited: True; create_task: works
SEEN
