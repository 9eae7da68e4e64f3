"""Helpers for tests of the format "mercure": publish, read back, and hubs with fewer
features.
"""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import httpx2

from hub.spark.tables import read_table
from skipfilter.spark.tables.schemas import SESSIONS, UPDATES
from tests.wire import parse_event

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.conftest import HubProcess
    from tests.wire import Event


def publish(hub: HubProcess, *updates: dict[str, Any]) -> list[str]:
    """Publish updates, in order, and return their ids."""
    ids: list[str] = []
    for start in range(0, len(updates), 1_000):
        body = "".join(json.dumps(update) + "\n" for update in updates[start : start + 1_000])
        headers = {"Content-Type": "application/x-ndjson", "Authorization": f"Bearer {hub.token}"}
        response = httpx2.post(hub.url, content=body.encode(), headers=headers)
        assert response.status_code == 200, response.text
        ids += response.text.split("\n")[:-1]
    return ids


def events_in(hub: HubProcess, *, match: str = "*") -> list[Event]:
    """All that the hub has, private updates too."""
    headers = {"Prefer": "wait=0", "Last-Event-ID": "earliest", "Authorization": f"Bearer {hub.token}"}
    response = httpx2.get(hub.url, params={"match": match}, headers=headers)
    *blocks, rest = response.text.split("\n\n")
    assert rest == ": all\n"
    return [event for block in blocks if (event := parse_event(block))]


def metadata_in(hub: HubProcess) -> list[dict[str, Any]]:
    """Return the metadata comments of all events that the hub has."""
    headers = {"Prefer": "wait=0, metadata", "Last-Event-ID": "earliest", "Authorization": f"Bearer {hub.token}"}
    response = httpx2.get(hub.url, params={"match": "*"}, headers=headers)
    return [json.loads(line[2:]) for line in response.text.split("\n") if line.startswith(": {")]


def token_file(hub: HubProcess, folder: Path) -> str:
    path = folder / "token"
    path.write_text(hub.token + "\n", "utf-8")
    return str(path)


def updates_and_sessions(spark: SparkSession, tables: Path) -> tuple[DataFrame, DataFrame]:
    """Two of the tables that were made of an event log."""
    updates, sessions = (
        read_table(spark, str(tables / name), schema) for name, schema in (("updates", UPDATES), ("sessions", SESSIONS))
    )
    return updates, sessions


class OtherHub:
    """A hub without JSON lines, `Prefer: wait=0` and idempotent publishing.

    Its streams stay open, with a comment now and then.  With `behind`, it passes
    updates on to that hub.
    """

    def __init__(self) -> None:
        self.updates: list[dict[str, list[str]]] = []
        self.types: list[str] = []
        self.refusals: list[int] = []
        """The statuses of the next responses; 200 accepts the request."""
        self.behind: str | None = None
        self.frames: list[bytes] = []
        self.applied = ""
        """Its header `Preference-Applied`; without wait=0, a stream stays open."""
        self.asked: list[str] = []
        """The methods of the requests for events."""
        self.beat = 0.02
        self.token = ""
        other = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                other.types.append(self.headers["Content-Type"])
                if other.refusals and (status := other.refusals.pop(0)) != 200:
                    return self._answer(status, "not now")
                if other.behind is not None:
                    headers = {name: self.headers[name] for name in ("Content-Type", "Authorization")}
                    answer = httpx2.post(other.behind, content=body.encode(), headers=headers)
                    return self._answer(answer.status_code, answer.text)
                update = parse_qs(body, keep_blank_values=True)
                if "topic" not in update:
                    return self._answer(400, 'Missing "topic" parameter')
                other.updates.append(update)
                return self._answer(200, update.get("id", ["?"])[0])

            def do_HEAD(self) -> None:
                other.asked.append("HEAD")
                self.send_response(200)
                self.send_header("Preference-Applied", other.applied)
                self.end_headers()
                self.close_connection = True

            def do_GET(self) -> None:
                other.asked.append("GET")
                if self.headers["Accept"] != "text/event-stream":
                    return self._answer(406, "only event streams")
                self.send_response(200)
                self.send_header("Preference-Applied", other.applied)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Connection", "close")
                self.send_header("Last-Event-ID", self.headers["Last-Event-ID"])
                self.end_headers()
                try:
                    self.wfile.write(b"".join(other.frames))
                    while not other.closed.wait(other.beat):
                        self.wfile.write(b":\n")
                except OSError:
                    pass
                self.close_connection = True
                return None

            def _answer(self, status: int, text: str) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(text.encode())))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.closed = threading.Event()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/.well-known/mercure"


@contextmanager
def other_hub() -> Iterator[OtherHub]:
    hub = OtherHub()
    thread = threading.Thread(target=hub.server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield hub
    finally:
        hub.closed.set()
        hub.server.shutdown()
        thread.join()
        hub.server.server_close()
