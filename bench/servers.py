"""Start the servers that are measured, and put loads on them in turn.

    hub, hub_on                 this project's hub; with a history of a certain kind
    floor, bare, queues, nchan  the servers that it is compared with
    once, in_turn               a load on one server; all variants in each round

Each server runs in a new process, on a free port, and on the first processor.  The load
generator has the last one.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from bench.benchmark import BENCH
from bench.clients import raise_file_limit
from bench.load import run
from bench.measure import summary
from bench.targets import Mercure, Nchan, Target
from hub.development import DEVELOPMENT_KEY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from bench.measure import Figures
    from bench.targets import Load

Server: TypeAlias = "Callable[[], AbstractContextManager[Target]]"

ROOT: Final = Path(__file__).parent.parent
HANG_SECONDS: Final = 30.0
"""How long a server may take to start or to stop."""
NCHAN_MODULE: Final = Path("/usr/lib/nginx/modules/ngx_nchan_module.so")

SETTINGS: Final = {
    "HUB_PUBLISHER_KEY": DEVELOPMENT_KEY,
    "HUB_SUBSCRIBER_KEY": DEVELOPMENT_KEY,
    "HUB_ANONYMOUS": "true",
    "HUB_MAX_LIFETIME": "0",
    "HUB_PUBLISH_RATE": "10000000",
    "HUB_HISTORY_URL": "memory://",
}
_URL: Final = re.compile(r"http://[^/\s]+:(\d+)/\S*")
_NGINX: Final = """\
load_module {module};
{user}
daemon off;
worker_processes 1;
worker_rlimit_nofile {files};
pid {directory}/pid;
error_log {directory}/error.log;
events {{ worker_connections {files}; }}
http {{
    access_log off;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    keepalive_requests 1000000000;
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        location /publish {{
            nchan_publisher;
            nchan_channel_id $arg_topic;
            nchan_message_buffer_length 100;
        }}
        location /subscribe {{
            nchan_subscriber eventsource;
            nchan_channel_id $arg_topic;
            nchan_subscriber_first_message newest;
        }}
    }}
}}
"""


@contextmanager
def hub(
    *flags: str, module: Sequence[str] = ("hub",), workers: int = 1, root: Path = ROOT, **environment: str
) -> Iterator[Target]:
    """Run `python -m hub serve` in the checkout `root`.

    The hub accepts classic tokens that the development key signs, and anonymous
    subscribers.  Connections have no maximum lifetime.  The history is in memory if
    `environment` has no HUB_HISTORY_URL.  `module` names another module with the same
    command line; arguments of its own follow its name.
    """
    command = *module, "serve", "--port", "0", "--log-level", "warning", "--workers", str(workers), *flags
    family = workers + 1 if workers > 1 else 1
    with _python(*command, environment=SETTINGS | environment, family=family, root=root) as target:
        yield target


@contextmanager
def hub_on(log: str, *, nodes: int = 1, workers: int = 1, root: Path = ROOT, **environment: str) -> Iterator[Target]:
    """Run a hub of `nodes` nodes on a new history of the kind `log`.

    It is that of the checkout `root`.  Subscribers use the first node, and publishers
    the last.  `new_log` lists the kinds.
    """
    with new_log(log) as (url, pids), ExitStack() as stack:
        one = partial(hub, workers=workers, root=root, HUB_HISTORY_URL=url, **environment)
        hubs = [stack.enter_context(one()) for _ in range(nodes)]
        every = *(pid for its in hubs for pid in its.pids), *pids
        yield replace(hubs[0], pids=every, publish_port=hubs[-1].port)


@contextmanager
def new_log(kind: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Create an empty history, and remove it afterwards.

    Yields its URL and the ids of its own processes.  `kind` is memory, sqlite,
    sqlite?synchronous=normal or redis; redis-server syncs its append-only file once a
    second.  Raises RuntimeError if redis-server is needed and missing.
    """
    scheme, mark, query = kind.partition("?")
    if scheme == "memory":
        yield "memory://", ()
        return
    with tempfile.TemporaryDirectory(prefix="log-") as directory:
        if scheme == "sqlite":
            yield f"sqlite:///{directory}/log.db{mark}{query}", ()
            return
        path = shutil.which("redis-server")
        if path is None:
            raise RuntimeError("redis-server is missing; on Debian, install the package redis-server")
        port = _free_port()
        options = {"bind": "127.0.0.1", "port": str(port), "dir": directory, "logfile": "redis.log", "save": ""}
        options |= {"appendonly": "yes", "appendfsync": "everysec"}
        with _started([path, *(word for name, value in options.items() for word in (f"--{name}", value))]) as process:
            _until(process, lambda: _listens(port))
            yield f"redis://127.0.0.1:{port}", (process.pid,)


@contextmanager
def floor() -> Iterator[Target]:
    """Run the floor, a bare loop with one write(2) per socket."""
    with _python("bench.baselines.floor", batches=False) as target:
        yield target


@contextmanager
def bare() -> Iterator[Target]:
    """Run uvicorn with an application that only reads and answers requests."""
    with _python("bench.baselines.bare", batches=False) as target:
        yield target


@contextmanager
def uvicorn_hub(*, root: Path = ROOT) -> Iterator[Target]:
    """Run the hub of the checkout `root` under plain uvicorn, as `uvicorn hub:app`."""
    command = [sys.executable, str(BENCH / "baselines" / "plain_uvicorn.py")]
    with _listening(command, SETTINGS | {"PYTHONPATH": str(root)}) as target:
        yield replace(target, dialect=Mercure(f"http://127.0.0.1:{target.port}/.well-known/mercure"))


@contextmanager
def queues() -> Iterator[Target]:
    """Run sse-starlette with a queue per subscriber.

    It runs on uvicorn with uvloop and httptools, as the hub does.
    """
    with _python("bench.baselines.queues", batches=False) as target:
        yield target


@contextmanager
def nchan() -> Iterator[Target]:
    """Run nginx with the module nchan and one worker process."""
    with tempfile.TemporaryDirectory(prefix="nchan-") as directory:
        port = _free_port()
        configuration = _NGINX.format(
            module=NCHAN_MODULE,
            user="user root;" if os.geteuid() == 0 else "",
            files=raise_file_limit(),
            directory=directory,
            port=port,
        )
        path = Path(directory, "nginx.conf")
        path.write_text(configuration)
        with _started(["nginx", "-e", f"{directory}/error.log", "-c", str(path)]) as process:
            _until(process, lambda: _listens(port))
            _until(process, lambda: len(_family(process.pid)) == 2)
            yield Target("127.0.0.1", port, Nchan(), _family(process.pid))


SERVERS: Final[Mapping[str, Server]] = {
    "one write(2)": floor,
    "hub": hub,
    "nginx with nchan": nchan,
    "sse-starlette": queues,
}
"""The servers that the benchmarks compare; the first is the baseline."""


def installed() -> dict[str, Server]:
    """Return the servers of SERVERS that this machine has.

    If nchan is missing, prints that it is left out.  The others need only Python
    packages that the project installs.
    """
    found = dict(SERVERS)
    if not (NCHAN_MODULE.exists() and shutil.which("nginx")):
        print(
            f"nginx with nchan is left out, because {NCHAN_MODULE} is missing: on Debian, install libnginx-mod-nchan."
        )
        del found["nginx with nchan"]
    return found


def in_turn(
    variants: Mapping[str, Callable[[], Figures]], *, rounds: int, of: str, shown: Sequence[str]
) -> dict[str, Figures]:
    """Run each variant once per round, and return its figures.

    `of` names the figure that is compared; the first variant is the baseline.  `shown`
    names the figures that are also returned, each as its median.
    """
    taken: dict[str, list[Figures]] = {variant: [] for variant in variants}
    for _ in range(rounds):
        for variant, ask in variants.items():
            found = ask()
            taken[variant].append({name: found[name] for name in (of, *shown) if name in found})
    return summary(taken, of)


def once(server: Server, load: Load) -> Figures:
    """Put `load` on a new server, and return the figures.

    An assertion fails if an update is lost or comes twice, or if the server closes a
    stream.
    """
    with server() as target:
        found = run(load, target)
    assert not any(found[name] for name in ("lost", "doubled", "closed")), found
    return found


def versions() -> dict[str, str]:
    """Return the versions of the software that the servers consist of."""
    made = {name: version(name) for name in ("httptools", "sse-starlette", "starlette", "uvicorn", "uvloop")}
    if shutil.which("nginx"):
        output = subprocess.run(["nginx", "-v"], capture_output=True, text=True, check=True).stderr
        made["nginx"] = output.rpartition("/")[2].strip()
    if shutil.which("dpkg-query") and NCHAN_MODULE.exists():
        query = ["dpkg-query", "--show", "--showformat", "${Version}", "libnginx-mod-nchan"]
        made["nchan"] = subprocess.run(query, capture_output=True, text=True, check=False).stdout
    return made


def log_versions() -> dict[str, str]:
    """Return `versions()`, and those of the histories, and the speed of the disk.

    The speed is the median time of 101 syncs of 4 KiB, under the name of the file
    system.
    """
    made = versions() | {"SQLite": sqlite3.sqlite_version, "redis-py": version("redis")}
    if shutil.which("redis-server"):
        output = subprocess.run(["redis-server", "--version"], capture_output=True, text=True, check=True).stdout
        made["redis-server"] = output.partition("v=")[2].partition(" ")[0]
    with tempfile.NamedTemporaryFile() as file:
        kind = subprocess.run(["df", "--output=fstype", file.name], capture_output=True, text=True, check=True).stdout
        taken = []
        for _ in range(101):
            file.write(bytes(4_096))
            file.flush()
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            taken.append(time.perf_counter() - began)
    return made | {kind.split()[-1]: f"with {sorted(taken)[50] * 1e3:.2g} ms a sync"}


@contextmanager
def _python(
    module: str,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    batches: bool = True,
    family: int = 1,
    root: Path = ROOT,
) -> Iterator[Target]:
    """Run `python -m module`; see `_listening`."""
    command = [sys.executable, "-m", module, *arguments]
    with _listening(command, environment or {}, batches=batches, family=family, root=root) as target:
        yield target


@contextmanager
def _listening(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    batches: bool = True,
    family: int = 1,
    root: Path = ROOT,
) -> Iterator[Target]:
    """Run a command in the directory `root`; it must print its URL.

    Waits until it consists of `family` processes.  Raises RuntimeError if it ends
    without printing a URL.
    """
    with _started(command, environment, root) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if found := _URL.search(line):
                dialect = Mercure(found[0], batches=batches)
                _until(process, lambda: len(_family(process.pid)) == family)
                yield Target("127.0.0.1", int(found[1]), dialect, _family(process.pid))
                return
        raise RuntimeError(f"{' '.join(command)} printed no URL")


@contextmanager
def _started(
    command: Sequence[str], environment: Mapping[str, str] | None = None, root: Path = ROOT
) -> Iterator[subprocess.Popen[str]]:
    """Run a command in `root` and on the first processor, and stop it afterwards.

    It may open many files, and gets no environment variable HUB_... of this process.
    If the caller's block raises an error, the error gets a note with the end of the
    command's stderr.
    """
    raise_file_limit()
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HUB_")}
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command, cwd=root, env=clean | dict(environment or {}), stdout=subprocess.PIPE, stderr=errors, text=True
        )
        os.sched_setaffinity(process.pid, {min(os.sched_getaffinity(0))})
        try:
            yield process
        except Exception as error:
            errors.seek(0)
            error.add_note(f"{' '.join(command)} wrote: {errors.read()[-2_000:]}")
            raise
        finally:
            process.terminate()  # not kill(), which would leave nginx's worker behind
            try:
                process.wait(HANG_SECONDS)
            finally:
                process.kill()
                process.wait()
                assert process.stdout is not None
                process.stdout.close()


def _family(pid: int) -> tuple[int, ...]:
    """Return the id of a process, and those of its children."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return (pid, *map(int, children))


def _free_port() -> int:
    """Return a port that no server is listening on."""
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def _listens(port: int) -> bool:
    """Return whether a server accepts connections on `port`."""
    with closing(socket.socket()) as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def _until(process: subprocess.Popen[str], holds: Callable[[], bool]) -> None:
    """Wait until `holds()` returns True.

    Raises RuntimeError if the process ends before, or after HANG_SECONDS.
    """
    end = time.monotonic() + HANG_SECONDS
    while not holds():
        if process.poll() is not None or time.monotonic() > end:
            raise RuntimeError("the server did not start")
        time.sleep(0.005)
