"""A hub under faults, watched by `skipfilter verify`: `make soak`, or python -m tests.soak
--help.

    skipfilter verify ──► node one, 2 workers ──┐ proxy ──► redis-server, appendfsync always
               └─► node two, 2 workers ──┘ proxy
                   under a clock that is set

or two nodes of two workers each over one SQLite file, on its own small file system.  A
fault happens every few seconds, in random order, each as often as the others.  The exit
status is that of `skipfilter verify`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

import httpx2

from tests.conftest import children_of
from tests.redis_server import RedisServer, free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PATH: Final = "/.well-known/mercure"
_CLOCK: Final = """
import os, time
def of_a_clock_that_is_set(real=time.time):
    with open(os.environ["SOAK_CLOCK"]) as file:
        return real() + float(file.read() or 0)
if "SOAK_CLOCK" in os.environ:
    time.time = of_a_clock_that_is_set
"""
"""The first module of a node whose clock is set."""
DISK: Final = 256 * 2**20
"""Bytes of the file system of a log in a file."""


class Node:
    """`skipfilter serve --workers 2` on its own port; it is restarted if it is killed."""

    def __init__(self, log: Path, history_url: str, *, clock: Path | None = None) -> None:
        self.port = free_port()
        self._log = log.open("w")
        self._environment = os.environ | {
            "HUB_HISTORY_URL": history_url,
            "HUB_HISTORY_UPDATES": "1000000",
            "HUB_HISTORY_BYTES": str(2**24),
            "HUB_SUBSCRIPTIONS": "1",
            "HUB_NODE_TIMEOUT": "5",
        }
        if clock is not None:
            self._environment |= {"SOAK_CLOCK": str(clock), "PYTHONPATH": str(clock.parent)}
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{PATH}"

    def start(self) -> None:
        command = [sys.executable, "-m", "hub", "serve", "--dev", "--workers", "2", "--port", str(self.port)]
        self.process = subprocess.Popen(command, stdout=self._log, stderr=self._log, env=self._environment)

    @property
    def workers(self) -> list[int]:
        return children_of(self.process.pid)

    def await_ready(self) -> None:
        for _ in range(300):
            assert self.process.poll() is None, "a node has ended"
            with suppress(httpx2.HTTPError):
                if httpx2.get(f"{self.url}/health/ready").status_code == 200:
                    return
            time.sleep(0.1)
        raise AssertionError("a node does not become ready")

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(30)
        self._log.close()


class Proxy:
    """A network between a node and a server, that can be cut, so that connections
    break, or silent.
    """

    def __init__(self, port: int) -> None:
        self._upstream = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._is_cut = False
        self._flows = threading.Event()
        self._flows.set()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            try:
                if self._is_cut:
                    raise ConnectionError
                server = socket.create_connection(("127.0.0.1", self._upstream))
            except OSError:
                client.close()
                continue
            self._pairs.append((client, server))
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=self._pump, args=[source, target], daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                self._flows.wait()
                target.sendall(data)
        for one in (source, target):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    @contextmanager
    def cut(self) -> Iterator[None]:
        self._is_cut = True
        for pair in self._pairs:
            for one in pair:
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
        self._pairs.clear()
        yield
        self._is_cut = False

    @contextmanager
    def silent(self) -> Iterator[None]:
        self._flows.clear()
        yield
        self._flows.set()


class Faults:
    """The faults of two nodes and their shared parts; each method causes one and ends
    it before it returns.
    """

    def __init__(self, nodes: list[Node], clock: Path, random: Random) -> None:
        self._nodes = nodes
        self._clock = clock
        self._random = random

    def _node(self) -> Node:
        return self._random.choice(self._nodes)

    def _kill(self, pids: list[int], number: int = signal.SIGKILL) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):  # it has already ended
                os.kill(pid, number)

    def _worker(self) -> list[int]:
        """One of a node's, if it has any now."""
        workers = self._node().workers
        return [self._random.choice(workers)] if workers else []

    def _pause(self, least: float, most: float) -> None:
        time.sleep(self._random.uniform(least, most))

    def kill_a_worker(self) -> None:
        self._kill(self._worker())

    def kill_a_node(self) -> None:
        node = self._node()
        self._kill([node.process.pid, *node.workers])
        node.process.wait()
        self._pause(0, 3)
        node.start()

    def kill_all_workers(self) -> None:
        for node in self._nodes:
            self._kill(node.workers)

    def stop_a_worker(self) -> None:
        worker = self._worker()
        self._kill(worker, signal.SIGSTOP)
        time.sleep(30)
        self._kill(worker, signal.SIGCONT)

    def restart_a_node(self) -> None:
        node = self._node()
        node.process.terminate()
        node.process.wait(30)
        node.start()

    def set_the_clock(self) -> None:
        self._clock.write_text(str(self._random.choice([-86_400, -3_600, 0, 3_600, 86_400])))


class RedisFaults(Faults):
    def __init__(
        self, nodes: list[Node], clock: Path, random: Random, server: RedisServer, proxies: list[Proxy]
    ) -> None:
        super().__init__(nodes, clock, random)
        self._server = server
        self._proxies = proxies

    def kill_redis(self) -> None:
        self._server.kill()
        self._pause(0, 5)
        self._server.start()

    def stop_redis(self) -> None:
        self._server.pause()
        time.sleep(30)
        self._server.resume()

    def cut_the_network(self) -> None:
        with self._random.choice(self._proxies).cut():
            self._pause(1, 8)

    def silence_the_network(self) -> None:
        with self._random.choice(self._proxies).silent():
            self._pause(1, 15)


class FileFaults(Faults):
    def __init__(self, nodes: list[Node], clock: Path, random: Random, log: Path) -> None:
        super().__init__(nodes, clock, random)
        self._log = log

    def fill_the_disk(self) -> None:
        filler = self._log.with_name("filler")
        with suppress(OSError), filler.open("wb") as file:
            while True:
                file.write(bytes(2**16))
                file.flush()
        self._pause(3, 10)
        filler.unlink()

    def damage_the_last_page(self) -> None:
        with closing(sqlite3.connect(self._log)) as connection, suppress(sqlite3.Error):
            connection.execute("PRAGMA wal_checkpoint")  # so that it is in the file
        size = self._log.stat().st_size
        with self._log.open("r+b") as file:
            file.seek(size - size % 4_096 - 4_096)
            file.write(b"\xff" * 4_096)


def faults_of(faults: Faults, random: Random) -> Iterator[Callable[[], None]]:
    """Yield the faults in random order, each as often as the others."""
    names = [name for name in dir(faults) if not name.startswith("_")]
    while True:
        for name in random.sample(names, len(names)):
            yield getattr(faults, name)


@contextmanager
def over_redis(directory: Path, clock: Path, random: Random) -> Iterator[Faults]:
    with ExitStack() as stack:
        server = RedisServer(appendonly="yes", appendfsync="always")
        stack.callback(server.close)
        proxies = [Proxy(server.port) for _ in range(2)]
        urls = [f"redis://127.0.0.1:{proxy.port}" for proxy in proxies]
        nodes = [Node(directory / f"node{n}.log", url, clock=clock if n else None) for n, url in enumerate(urls)]
        for node in nodes:
            stack.callback(node.close)
        yield RedisFaults(nodes, clock, random, server, proxies)


@contextmanager
def over_sqlite(directory: Path, clock: Path, random: Random) -> Iterator[Faults]:
    disk = directory / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "hub-soak", disk], check=True)
    with ExitStack() as stack:
        stack.callback(lambda: subprocess.run(["umount", "-l", disk], check=True))
        log = disk / "log.db"
        nodes = [Node(directory / f"node{n}.log", f"sqlite:///{log}", clock=clock if n else None) for n in range(2)]
        for node in nodes:
            stack.callback(node.close)
        yield FileFaults(nodes, clock, random, log)


def soak(kind: str, seconds: float, seed: int, options: list[str]) -> int:
    random = Random(seed)
    directory = Path(tempfile.mkdtemp(prefix="soak-"))
    clock = directory / "clock"
    clock.write_text("0")
    (directory / "sitecustomize.py").write_text(_CLOCK)
    with (over_redis if kind == "redis" else over_sqlite)(directory, clock, random) as faults:
        nodes = faults._nodes
        for node in nodes:
            node.await_ready()
        command = [sys.executable, "-m", "hub", "verify", "--dev", "--json", *options]
        command += ["--seconds", str(seconds), *(node.url for node in nodes)]
        began = time.monotonic()
        done: dict[str, int] = {}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as verify:
            for fault in faults_of(faults, random):
                time.sleep(random.uniform(3, 6))
                if verify.poll() is not None or time.monotonic() - began > seconds - 10:
                    break
                print(f"{time.monotonic() - began:6.1f} s  {fault.__name__}", file=sys.stderr, flush=True)
                try:
                    fault()
                except BaseException:
                    verify.kill()
                    raise
                done[fault.__name__] = done.get(fault.__name__, 0) + 1
            assert verify.stdout is not None
            report: dict[str, Any] = json.loads(verify.stdout.read())
        print(json.dumps({"transport": kind, "seed": seed, "faults": done} | report, indent=2, ensure_ascii=False))
        errors = [
            line
            for n in range(len(nodes))
            for line in (directory / f"node{n}.log").read_text().splitlines()
            if "Traceback" in line
        ]
        print(f"tracebacks in the logs of the nodes: {len(errors)}; they are in {directory}", file=sys.stderr)
    if not errors:
        shutil.rmtree(directory)
    return verify.returncode or int(bool(errors))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("transport", choices=["redis", "sqlite"])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=1)
    chosen, options = parser.parse_known_args()  # the others are `skipfilter verify`'s
    sys.exit(soak(chosen.transport, chosen.seconds, chosen.seed, options))


if __name__ == "__main__":
    main()
