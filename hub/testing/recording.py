"""Recording: the updates that are published to a hub, and assertions about them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from hub.protocol.data import require_topics
from skipfilter.text import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hub.history.base import Entry, History
    from hub.http.embedding import HubApplication
    from hub.protocol.data import Data
    from hub.protocol.updates import Update


class RecordedUpdates(list["Update"]):
    """The updates that were published, oldest first: over HTTP and by the program.

    Updates about subscribers are not among them, nor are repeated ones that the hub has
    left out.
    """

    def matching(
        self,
        *topics: str,
        data: Data | None = None,
        private: bool | None = None,
        type: str | None = None,
        id: str | None = None,
    ) -> list[Update]:
        """Return the updates that have all these topics, and each field that is given.

        A dict or list as data is compared with the JSON of an update.
        """
        require_topics(topics)
        fields = {"private": private, "type": type, "id": id}
        return [
            update
            for update in self
            if set(topics) <= set(update.topics)
            and (data is None or _has_data(update, data))
            and all(value is None or getattr(update, name) == value for name, value in fields.items())
        ]

    def assert_published(
        self,
        *topics: str,
        data: Data | None = None,
        private: bool | None = None,
        type: str | None = None,
        id: str | None = None,
        count: int | None = None,
    ) -> Update:
        """Return the newest update that `matching` finds.

        Raises AssertionError if there is none, or if there are not exactly `count`.
        """
        found = self.matching(*topics, data=data, private=private, type=type, id=id)
        if found and count in (None, len(found)):
            return found[-1]
        given = {"data": data, "private": private, "type": type, "id": id}
        wanted = [f"to {', '.join(map(shown, topics))}"] if topics else []
        wanted += [f"{name}={value!r}" for name, value in given.items() if value is not None]
        number = f"{len(found)} updates were published" if found else "no update was published"
        times = f", instead of {count}" if count is not None else ""
        raise AssertionError(f"{' '.join([number, *wanted])}{times}; {self._all()}")

    def assert_nothing_published(self) -> None:
        """Raise AssertionError if anything was published."""
        if self:
            raise AssertionError(f"updates were published; {self._all()}")

    def _all(self) -> str:
        if not self:
            return "nothing was published at all"
        lines = (
            f"\n  {', '.join(update.topics)}: {shown(update.data)}"
            + (f" type={update.type!r}" if update.type else "")
            + (" private" if update.private else "")
            for update in self
        )
        return "all updates:" + "".join(lines)


def record_updates(app: HubApplication) -> RecordedUpdates:
    """Return a record of all updates that are published to a hub from now on.

    It works with every history.  The record ends with the hub.
    """
    updates = RecordedUpdates()
    publishing = app.hub.publishing
    publishing.history = cast("History", _Recorder(publishing.history, updates))
    return updates


class _Recorder:
    """A history that records the updates which publishers append to it."""

    def __init__(self, history: History, updates: RecordedUpdates) -> None:
        self._history = history
        self._updates = updates

    async def append(self, updates: Sequence[Update], *, publisher: str = "", known: int | None = None) -> list[Entry]:
        entries = await self._history.append(updates, publisher=publisher, known=known)
        self._updates += (entry.update for entry in entries)
        return entries

    def __getattr__(self, name: str) -> Any:
        return getattr(self._history, name)


def _has_data(update: Update, data: Data) -> bool:
    if isinstance(data, str):
        return update.data == data
    try:
        return bool(json.loads(update.data) == data)
    except ValueError:
        return False
