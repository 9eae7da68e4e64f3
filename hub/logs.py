"""Lines of the log: one for each event, in logfmt, through the standard library's loggers."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

import structlog

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor

_LOGGER: Final = "hub"


def configure_log() -> None:
    """Have structlog write to the standard library's loggers, unless the application has configured it."""
    if not structlog.is_configured():
        log_to_stdlib()


def log_to_stdlib() -> None:
    """Have structlog write its lines to the standard library's loggers."""
    structlog.configure(
        processors=_PROCESSORS,
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )


_logfmt = structlog.processors.LogfmtRenderer(key_order=["event"])


def _render(logger: Any, method: str, fields: EventDict) -> tuple[tuple[str], dict[str, Any]]:
    """The arguments of a logger's method: one line with all fields, and below it the traceback, if there is one."""
    traceback = fields.pop("exception", None)
    line = str(_logfmt(logger, method, fields))
    # Without exc_info: the handlers of other servers would write the exception as it is.
    return (printable(line if traceback is None else f"{line}\n{traceback}"),), {"exc_info": False}


def printable(text: str) -> str:
    r"""Escape what is not printable, as a string of Python does; a line after the first is indented.

    A log holds texts of clients.  Control characters would steer the terminal of its reader, line separators would
    forge another line, and marks of direction would disguise one.

    >>> print(printable("a\x1b[2J\u202eb\nc"))
    a\x1b[2J\u202eb
        c
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else "\n    " if one == "\n" else ascii(one)[1:-1] for one in text)


# One list, however often it is configured: a logger keeps the one that it was first used with.
_PROCESSORS: Final[list[Processor]] = [structlog.stdlib.filter_by_level, structlog.processors.format_exc_info, _render]


class LogFormatter(logging.Formatter):
    """The format of `hub serve`, also for the lines of the server below it, which may hold exceptions."""

    def format(self, record: logging.LogRecord) -> str:
        formatted = super().format(record)
        return formatted if record.name == _LOGGER else printable(formatted)  # those of the hub are so already
