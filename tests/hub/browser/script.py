"""A server that answers as a script says."""

from __future__ import annotations

import socket
import struct
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import hub
from tests.hub.browsing import LocalServer
from tests.waiting import HANG

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MODULE = Path(hub.__file__).with_name("browser") / "client.js"
STREAM = {"Content-Type": "text/event-stream"}
SHOWN = ("last-event-id", "authorization", "prefer", "accept", "cookie")


class Reply(NamedTuple):
    """What one request gets."""

    status: int = 200
    headers: Mapping[str, str] = STREAM
    body: bytes = b""
    end: str = "close"
    """How it ends: `close`, `cut` within a chunk, `reset` once the page has asked for
    its path with /read, or `silent` until the end of the server.  With `flood`, it is
    noted if the page does not read all of it."""


class Script(LocalServer):
    """Answers the requests for each path in turn, and all later ones with 204.

    It also has an empty page at its root, and the module below each path.
    """

    def __init__(self) -> None:
        super().__init__(partial(_Request, self))
        self.replies: dict[str, list[Reply | Callable[[dict[str, str]], Reply]]] = {}
        self.asked: dict[str, list[dict[str, str]]] = {}
        """What the headers of the requests were, by path."""
        self.queries: dict[str, list[str]] = {}
        self.is_read: dict[str, threading.Event] = {}
        self.is_sent: dict[str, threading.Event] = {}
        self.is_held_back: dict[str, threading.Event] = {}
        """Whether all of a flood is sent; and whether the page has not read on."""
        self.closing = threading.Event()

    def add(self, path: str, *replies: Reply | Callable[[dict[str, str]], Reply]) -> str:
        """Return the URL that gets these replies."""
        self.replies[path] = list(replies)
        self.asked[path] = []
        self.queries[path] = []
        self.is_read[path] = threading.Event()
        self.is_sent[path] = threading.Event()
        self.is_held_back[path] = threading.Event()
        return self.origin + path

    def cursors(self, path: str) -> list[str]:
        return [headers.get("last-event-id", "") for headers in self.asked[path]]

    def close(self) -> None:
        self.closing.set()
        super().close()


class _Request(BaseHTTPRequestHandler):
    def __init__(self, script: Script, *arguments: Any) -> None:
        self._script = script
        super().__init__(*arguments)

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if path.endswith("/read"):
            self._script.is_read[path.removesuffix("/read")].set()
            reply = Reply(204, {})
        elif path.endswith("/client.js"):
            reply = Reply(200, {"Content-Type": "text/javascript"}, MODULE.read_bytes())
        elif path not in self._script.replies:
            reply = Reply(200, {"Content-Type": "text/html"}, b"<!doctype html><title>A page</title>")
        else:
            reply = self._next(path)
        self._answer(path, reply)

    def _next(self, path: str) -> Reply:
        shown = [(name.lower(), value) for name, value in self.headers.items() if name.lower() in SHOWN]
        headers = {name: value.encode("latin-1").decode() for name, value in shown}
        self._script.asked[path].append(headers)
        self._script.queries[path].append(urlsplit(self.path).query)
        replies = self._script.replies[path]
        reply = replies.pop(0) if replies else Reply(204, {})
        return reply if isinstance(reply, Reply) else reply(headers)

    def _answer(self, path: str, reply: Reply) -> None:
        self.close_connection = True
        if reply.end == "reset" and not reply.body:
            self._reset()
            return
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        if reply.end in ("cut", "reset"):
            self.send_header("Transfer-Encoding", "chunked")
            body = b"%x\r\n%b\r\n" % (len(reply.body), reply.body)
        else:
            self.send_header("Connection", "close")
            body = reply.body
        self.end_headers()
        if reply.end == "flood":
            self._flood(path, body)
            return
        self.wfile.write(body)
        if reply.end == "cut":
            self.wfile.write(b"40\r\ndata: half")
        elif reply.end == "reset":
            self._script.is_read[path].wait(HANG)  # because what a page has not read would be lost
            self._reset()
        elif reply.end == "silent":
            self._script.closing.wait()

    def _flood(self, path: str, body: bytes) -> None:
        rest = memoryview(body)
        self.connection.settimeout(1)  # all buffers are full
        while rest:
            try:
                rest = rest[self.connection.send(rest) :]
            except TimeoutError:
                self._script.is_held_back[path].set()
        self._script.is_sent[path].set()

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def log_message(self, format: str, *args: Any) -> None:
        pass
