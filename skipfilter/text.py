"""Parts of messages: a value, how to install an extra, and the end of a help."""

from __future__ import annotations

from typing import Final

PUBLISHED: Final = False
"""Whether the package is on PyPI.

If you change this, run `python -m tests.installation`, which rewrites the READMEs.
"""

INSTALL: Final = (
    "pip install 'skipfilter[{extra}]'" if PUBLISHED else "pip install '.[{extra}]' in the project's repository"
)
"""How to install an extra."""


def shown(value: str | bytes, longest: int = 80) -> str:
    """Return `value` as a message shows it: escaped, and shortened if it is long."""
    return repr(value) if len(value) <= longest else f"{value[:longest]!r}…"


def escaped(text: str, *, keep: str = "") -> str:
    r"""Return `text` with its unprintable characters escaped, as in a Python string.

    So a text from elsewhere cannot steer a terminal.  The characters in `keep` stay.

    >>> print(escaped("a\x1b[2J\n", keep="\n"), end="")
    a\x1b[2J
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in keep else ascii(one)[1:-1] for one in text)


def missing(what: str, package: str, extra: str) -> str:
    """Return the message that `what` needs a package of an extra."""
    return f"{what} needs {package}: {INSTALL.format(extra=extra)}"


def example(*lines: str) -> str:
    """Return the end of the help of a command: commands to copy.

    The character \\b keeps click from joining the lines.
    """
    return "\n".join(["\b", f"Example{'s' if len(lines) > 1 else ''}:", *(f"  {line}" for line in lines)])


def brief(value: object) -> str:
    """Return any value as a message shows it: up to 80 characters of its repr."""
    try:
        return f"{value!r:.80}"
    except ValueError:  # an integer of more than 4,300 digits
        return f"a large {type(value).__name__}"
