"""The Lua scripts: each is begin.lua followed by its own text.

A server caches the scripts that it has received, by the SHA-1 of their texts.
"""

from __future__ import annotations

from hashlib import sha1
from importlib.resources import files
from typing import Final


class Script:
    """The script in the file `name`.lua, with begin.lua before it."""

    def __init__(self, name: str) -> None:
        self.text = f"{_text('begin')}\n{_text(name)}"
        self.sha = sha1(self.text.encode(), usedforsecurity=False).hexdigest()
        """The name under which the server caches the script."""


def _text(name: str) -> str:
    return files("hub.history.redis").joinpath(f"{name}.lua").read_text("utf-8")


ANSWER: Final = Script("answer")
APPEND: Final = Script("append")
BEAT: Final = Script("beat")
CHECK: Final = Script("check")
COMMAND: Final = Script("command")
END: Final = Script("end")
FIND: Final = Script("find")
HEAR: Final = Script("hear")
LEAVE: Final = Script("leave")
LOCATE: Final = Script("locate")
NEWEST: Final = Script("newest")
PAGE: Final = Script("page")
PRUNE: Final = Script("prune")
STATS: Final = Script("stats")
