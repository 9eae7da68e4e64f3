"""The format of log lines: one line for each event, in logfmt.

structlog makes the lines, and the loggers of the standard library write them.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

import structlog

from skipfilter.text import escaped

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor

_LOGGER: Final = "hub"


def configure_log() -> None:
    """Call `log_to_stdlib`, unless the application has configured structlog itself."""
    if not structlog.is_configured():
        log_to_stdlib()


def log_to_stdlib() -> None:
    """Make structlog write its lines through the loggers of the standard library."""
    structlog.configure(
        processors=_PROCESSORS,
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )


_logfmt = structlog.processors.LogfmtRenderer(key_order=["event"])


def _render(logger: Any, method: str, fields: EventDict) -> tuple[tuple[str], dict[str, Any]]:
    """Return the arguments for a method of a logger.

    They are one line with all fields and, if there was an exception, its traceback
    below.
    """
    traceback = fields.pop("exception", None)
    line = str(_logfmt(logger, method, fields))
    # exc_info is off, because a handler of another server would write the exception
    # again, unescaped.
    return (printable(line if traceback is None else f"{line}\n{traceback}"),), {"exc_info": False}


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


# A constant, because a logger keeps the list that was configured when it was first
# used.
_PROCESSORS: Final[list[Processor]] = [structlog.stdlib.filter_by_level, structlog.processors.format_exc_info, _render]


class LogFormatter(logging.Formatter):
    """The formatter of `skipfilter serve`, which escapes what other loggers write.

    The lines of the HTTP server, for example, may contain exceptions.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of `record`, with its unprintable characters escaped."""
        formatted = super().format(record)
        return formatted if record.name == _LOGGER else printable(formatted)  # the hub escapes its own
