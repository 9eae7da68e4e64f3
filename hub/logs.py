"""Log lines: their format, and what they say about the request.

    log.info("a text", key=value) ─► of which request? ─► text or JSON ─► a logger of
                                     address, subject …                   `logging`

structlog makes the lines, and the loggers of the standard library write them.  A line
that is written while a request is handled also has the fields of that request.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import lru_cache
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

import structlog

from skipfilter.text import escaped

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from structlog.typing import EventDict, Processor

LogFormat: TypeAlias = Literal["text", "json"]

_LOGGER: Final = "hub"

DEBUGGED: Final = logging.getLogger(_LOGGER)
"""The logger of the hub, which knows its level.

A logger of structlog does not know it if a program has configured structlog.
"""

MOST_SHOWN: Final = 200
"""Characters of a text of a client that a line shows, at most."""
_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
_TRACEPARENT: Final = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")

ABOUT_CLIENTS: Final = ("address", "subject", "token_id")
"""The fields that are about a person, which `log_clients` can leave out."""


class LogContext(NamedTuple):
    """What log lines say about a request; a field that is "" is left out."""

    request: str
    """The id of the request: that of its X-Request-Id, or a random one."""
    address: str
    """The address of the client."""
    method: str
    path: str
    origin: str
    """The origin of the page that sent the request."""
    traceparent: str
    """The position of the request in a trace (W3C Trace Context)."""

    def fields(self, subject: str | None) -> dict[str, str]:
        """Return the fields of a log line; `subject` is that of the client's token."""
        fields = {name: value for name, value in self._asdict().items() if value}
        return fields | {"subject": subject.strip()} if subject else fields


class LoggedRequest:
    """The parts of a request that log lines need, and nothing that answers it.

    `headers` are pairs, with names in lower case.  `client` is the address and port of
    the client, if they are known.  `subject` is the subject of its token, as soon as
    that is verified.
    """

    __slots__ = ("_client", "_context", "_headers", "_method", "_path", "subject")

    def __init__(
        self, headers: Iterable[tuple[bytes, bytes]], client: Sequence[Any] | None, method: str, path: str
    ) -> None:
        self._headers = headers
        self._client = client
        self._method = method
        self._path = path
        self._context: LogContext | None = None
        self.subject: str | None = None

    @property
    def context(self) -> LogContext:
        """What log lines say about the request.

        Texts of the client are cut off, and left out if they are malformed.
        """
        if self._context is None:
            id = origin = traceparent = ""
            for name, value in self._headers:
                if name == b"origin":
                    origin = _header_text(value)
                elif name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
                    id = value.decode("ascii")
                elif name == b"traceparent" and _TRACEPARENT.fullmatch(value):
                    traceparent = value.decode("ascii")
            address = str(self._client[0]) if self._client else ""
            path = self._path[:MOST_SHOWN]
            self._context = LogContext(id or token_hex(8), address, self._method, path, origin, traceparent)
        return self._context


@lru_cache(1_024)
def _header_text(value: bytes) -> str:
    """Return the text of a header field, which many open connections share."""
    return value[:MOST_SHOWN].decode("latin-1")


current_request: Final[ContextVar[LoggedRequest | None]] = ContextVar("current_request", default=None)
"""The request that is being handled.

Timers and tasks that begin meanwhile keep it, so it must not refer to a connection.
"""


def configure_log(format: LogFormat = "text", *, with_clients: bool = True) -> None:
    """Call `log_to_stdlib`, unless the application has configured structlog itself."""
    if not structlog.is_configured():
        log_to_stdlib(format, with_clients=with_clients)


def log_to_stdlib(format: LogFormat = "text", *, with_clients: bool = True) -> None:
    """Make structlog write its lines through the loggers of the standard library.

    Without clients, no line has the address of a client, or the subject of its token.
    """
    _PROCESSORS[:] = [
        structlog.stdlib.filter_by_level,
        _add_request,
        *([] if with_clients else [_remove_clients]),
        structlog.processors.format_exc_info,
        _text if format == "text" else _json,
    ]
    structlog.configure(
        processors=_PROCESSORS,
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )


def log_to_stderr(level: str, format: LogFormat, *, with_clients: bool, with_process: bool = False) -> None:
    """Write all log lines of this process from `level` on to stderr.

    Other loggers, such as that of the HTTP server, get the same format.  With process,
    each line has the id of its process.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(format, with_process=with_process))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    log_to_stdlib(format, with_clients=with_clients)


def log_beside_uvicorn(format: LogFormat, *, with_clients: bool) -> None:
    """Write the hub's lines to stderr, and give those of uvicorn the same format.

    uvicorn has configured its own loggers by now.  If another server has a handler for
    all loggers, that writes the lines of the hub.
    """
    for name in ("uvicorn", "uvicorn.access"):
        for handler in logging.getLogger(name).handlers:
            handler.setFormatter(formatter(format))
            if not with_clients:
                handler.addFilter(_without_address)
    if not DEBUGGED.hasHandlers():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(formatter(format))
        DEBUGGED.addHandler(handler)
        DEBUGGED.setLevel(logging.getLogger("uvicorn").level or logging.INFO)
    log_to_stdlib(format, with_clients=with_clients)


def _without_address(record: logging.LogRecord) -> bool:
    """Remove the address from a line of uvicorn's access log."""
    if record.name == "uvicorn.access" and isinstance(record.args, tuple):
        record.args = ("-", *record.args[1:])
    return True


def formatter(format: LogFormat, *, with_process: bool = False) -> logging.Formatter:
    """Return the formatter of the lines of all loggers."""
    if format == "json":
        return JsonFormatter()
    process = "%(process)d " if with_process else ""
    return LogFormatter(f"%(asctime)s {process}%(levelname)-7s %(message)s")


def _add_request(_: Any, __: str, fields: EventDict) -> EventDict:
    """Add the fields of the request that is being handled."""
    request = current_request.get()
    if request is None:
        return fields
    # The line's own fields come first, and count if both have one of a name.
    return {**fields, **request.context.fields(request.subject), **fields}


def _remove_clients(_: Any, __: str, fields: EventDict) -> EventDict:
    return {name: value for name, value in fields.items() if name not in ABOUT_CLIENTS}


_logfmt = structlog.processors.LogfmtRenderer(key_order=["event"], bool_as_flag=False)


def _text(logger: Any, method: str, fields: EventDict) -> tuple[tuple[str], dict[str, Any]]:
    """Return the arguments for a method of a logger: one line with all fields.

    If there was an exception, its traceback is below.
    """
    traceback = fields.pop("exception", None)
    line = str(_logfmt(logger, method, fields))
    # exc_info is off, because a handler of another server would write the exception
    # again, unescaped.
    return (printable(line if traceback is None else f"{line}\n{traceback}"),), {"exc_info": False}


def _json(_: Any, __: str, fields: EventDict) -> tuple[tuple[str], dict[str, Any]]:
    """Return the arguments for a method of a logger: an object with all fields.

    `JsonFormatter` adds the time, the level and the process.
    """
    return (_dumps({"event": fields.pop("event"), **fields}),), {"exc_info": False}


def _dumps(fields: EventDict) -> str:
    # json escapes control characters, and all that is not ASCII.
    return json.dumps(fields, default=repr, separators=(",", ":"))


def printable(text: str) -> str:
    r"""Return `text` with all unprintable characters escaped, as in a Python string.

    A line feed stays, and the line after it is indented.

    A log contains texts that clients sent.  A control character could steer the
    terminal of the reader, a line separator could forge a line, and a direction mark
    could disguise one.

    >>> print(printable("a\x1b[2J\u202eb\nc"))
    a\x1b[2J\u202eb
        c
    """
    return escaped(text, keep="\n").replace("\n", "\n    ")


# One list, because a logger keeps the one that was configured when it was first used.
_PROCESSORS: Final[list[Processor]] = []


class LogFormatter(logging.Formatter):
    """The formatter of lines of text, which escapes what other loggers write.

    The lines of the HTTP server, for example, may contain exceptions.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of `record`, with its unprintable characters escaped."""
        formatted = super().format(record)
        return formatted if record.name == _LOGGER else printable(formatted)  # the hub escapes its own


class JsonFormatter(logging.Formatter):
    """The formatter of lines that are objects of JSON, for all loggers.

    The first members are `time` (RFC 3339), `level`, `process` and `event`.  Lines of
    other loggers have `logger` too, and none of the other fields.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of `record`."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields = {"time": time, "level": record.levelname.lower(), "process": record.process}
        message = record.getMessage()
        if record.name == _LOGGER and message.startswith('{"event":'):  # the hub's own object
            return f"{_dumps(fields)[:-1]},{message[1:]}"
        fields |= {"event": message, "logger": record.name}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return _dumps(fields)
