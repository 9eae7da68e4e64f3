"""Updates, and the rules that publishers must follow."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from hub.errors import InvalidRequest
from hub.protocol.data import data_text, require_topics
from hub.protocol.topics import WILDCARD, check_text, is_reserved
from skipfilter.text import shown

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hub.protocol.data import Data

HUB_TYPE: Final = "mercure"
"""The type of the hub's own events (N52)."""
EARLIEST_ID: Final = "earliest"
"""The cursor for the position before all updates in the history (N110).

No update can have this id (N116).
"""

_VARIANTS: Final = dict(zip("0123456789abcdef", "89ab" * 4, strict=True))
"""A random hexadecimal digit -> the one that stands for the variant of RFC 9562."""


def new_id() -> str:
    """Return a random IRI (N27, N51).

    All of it is random.  A UUID of version 7 would show the time of the update to
    clients that may not read it (N111).
    """
    digits = os.urandom(16).hex()
    # A UUID of version 4.  An object for it would cost more than the rest.
    variant = _VARIANTS[digits[16]]
    return f"urn:uuid:{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"


@dataclass(frozen=True, slots=True, init=False)
class Update:
    """An update, as a publisher sends it.

    The first topic is the canonical one, and the others are alternates (N4).  Raises
    TypeError if `topics` is a text, or if `data` is neither a str nor a dict or list.
    """

    topics: tuple[str, ...]
    data: str
    """The data: the text that was given, or compact JSON of the dict or list."""
    private: bool
    """Whether only clients with a grant for one of the topics receive it (N81)."""
    id: str
    """The id, which any client may send as its cursor; random by default.

    So a client that guesses an id learns whether the history has it.  Ids of private
    updates should be random (N111).
    """
    type: str | None
    """The type of the event, or None."""
    retry: int | None
    """Milliseconds that clients should wait before they reconnect (N53), or None.

    If it comes from a request, it is at most a day.
    """
    _size: int | None = field(init=False, repr=False, compare=False)  # None until it is needed

    def __init__(
        self,
        topics: Iterable[str],
        data: Data = "",
        private: bool = False,
        id: str | None = None,
        type: str | None = None,
        retry: int | None = None,
    ) -> None:
        if isinstance(topics, str):
            raise TypeError(f"topics {shown(topics)} is a text: give the topics as a tuple, as in ({shown(topics)},)")
        # An object that is frozen has no other way.
        put = object.__setattr__
        given = tuple(topics)
        require_topics(given)
        put(self, "topics", given)
        put(self, "data", data_text(data))
        put(self, "private", private)
        put(self, "id", new_id() if id is None else id)
        put(self, "type", type)
        put(self, "retry", retry)
        put(self, "_size", None)

    @property
    def size(self) -> int:
        """About how many bytes of memory the update takes.

        It counts the texts and the frame, which has a prefix for each line of data.
        """
        size = self._size
        if size is None:
            data = self.data
            size = len(data) if data.isascii() else len(data.encode("utf-8"))
            size += 6 * (data.count("\n") + data.count("\r"))
            size += sum(map(sys.getsizeof, (data, self.id, self.type, *self.topics)))
            object.__setattr__(self, "_size", size)
        return size


def require_updates(updates: Iterable[object]) -> None:
    """Raise TypeError unless each of them is an Update."""
    for update in updates:
        if not isinstance(update, Update):
            raise TypeError(f'{update!r:.80} is no Update, as in Update(("/a",), "1")')


def check_topic(topic: str, *, path: str) -> None:
    """Raise InvalidRequest unless publishers may use `topic` (N43, N44, N48).

    `path` is the path of the hub URL.
    """
    check_text("topic", topic)
    if topic == WILDCARD:
        raise InvalidRequest("topic '*' is reserved: it is the pattern that matches every topic")
    if not topic:
        raise InvalidRequest(f"topic '' is reserved: it is empty, so it resolves to {path}, which is the hub's own")
    if is_reserved(topic, path):
        raise InvalidRequest(f"topic {shown(topic)} is reserved: it resolves to {path}, which is the hub's own")


def check_fields(update: Update) -> None:
    """Raise InvalidRequest unless the other fields of `update` are valid.

    There must be a topic (N41).  The rules are N51 for the id, N52 for the type and N53
    for the retry.
    """
    if not update.topics:
        raise InvalidRequest('missing "topic" field')
    check_text("id", update.id)
    if update.id.startswith("#") or update.id == EARLIEST_ID:
        raise InvalidRequest(f"id {shown(update.id)} is reserved")
    if update.id != update.id.strip(" ") or not update.id:
        # The id comes back as a cursor in a header, which loses spaces at both ends
        # (R77).
        raise InvalidRequest(f"id {shown(update.id)} is empty, or begins or ends with a space")
    if update.type is not None:
        check_text("type", update.type)
        if update.type == HUB_TYPE:
            raise InvalidRequest("type 'mercure' is reserved: it marks the hub's own events")
    if update.retry is not None and (not isinstance(update.retry, int) or update.retry < 0):
        raise InvalidRequest(f"retry {update.retry} is not a number of milliseconds")
