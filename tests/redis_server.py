"""A real redis-server in its own process, which tests kill, stop and restart; and a
sentinel.
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tests.waiting import HANG

if TYPE_CHECKING:
    from typing import Self


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class RedisServer:
    """`redis-server` on a free port, in its own directory, with options:
    RedisServer(appendonly="yes").

    After a restart it has the same port and directory.  With `sentinel_of`, it is a
    sentinel that watches that server under the name `mercure`.  With `dump`, it starts
    with the content of that file.  Without options it writes nothing to disk.
    """

    def __init__(self, *, sentinel_of: RedisServer | None = None, dump: Path | None = None, **options: str) -> None:
        path = shutil.which("redis-server")
        assert path is not None, "no redis-server: install Debian's package redis-server"
        self._path = path
        self.port = free_port()
        self.directory = Path(tempfile.mkdtemp(prefix="redis-"))
        self._sentinel_of = sentinel_of
        self._options = {"save": "", "appendonly": "no", "repl_diskless_sync_delay": "0"} | options
        self._process: subprocess.Popen[bytes] | None = None
        if dump is not None:
            shutil.copy(dump, self.directory / "dump.rdb")
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, and wait until it has loaded its data."""
        configuration = self.directory / "redis.conf"
        lines = [f"port {self.port}", "bind 127.0.0.1", f"dir {self.directory}", "logfile redis.log"]
        if self._sentinel_of is None:
            lines += [f'{name.replace("_", "-")} "{value}"' for name, value in self._options.items()]
        elif not configuration.exists():  # the sentinel writes into its configuration
            lines += [
                f"sentinel monitor mercure 127.0.0.1 {self._sentinel_of.port} 1",
                "sentinel down-after-milliseconds mercure 1500",  # it pings once a second
                "sentinel failover-timeout mercure 2000",
            ]
        if self._sentinel_of is None or not configuration.exists():
            configuration.write_text("\n".join(lines) + "\n")
        command = [self._path, str(configuration), *(["--sentinel"] if self._sentinel_of else [])]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + HANG
        while self._answer("PING") != "+PONG":
            assert self._process.poll() is None, f"redis-server ended: {self._log()}"
            assert time.monotonic() < deadline, f"redis-server does not answer: {self._log()}"
            time.sleep(0.01)

    def _log(self) -> str:
        with suppress(FileNotFoundError):
            return (self.directory / "redis.log").read_text()
        return "it has no log"

    def _answer(self, *command: str) -> str:
        """Return the first line of its reply, "" if it has none."""
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), HANG) as connection:
            connection.sendall(b"*%d\r\n" % len(command))
            for word in command:
                connection.sendall(b"$%d\r\n%s\r\n" % (len(word.encode()), word.encode()))
            return connection.makefile().readline().rstrip()
        return ""

    def ask(self, *command: str) -> str:
        """Do a command; its answer must be no error."""
        answer = self._answer(*command)
        assert answer, f"no answer to {command}"
        assert not answer.startswith("-"), f"{command}: {answer}"
        return answer

    def kill(self) -> None:
        """Kill it, like a crash."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """As an operator would."""
        self._end(signal.SIGTERM)

    def _end(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)
        self._process.send_signal(number)
        self._process.wait(HANG)

    def restart(self) -> None:
        self.kill()
        self.start()

    def pause(self) -> None:
        """Suspend it: it accepts connections and never responds."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.directory)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
