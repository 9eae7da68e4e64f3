"""Wide selectors: the numbered selectors of a job, and a worker's index of them.

A selector is wide if it is not exact, or if its bitmaps are large.  A worker has all
wide selectors, and builds one index from a topic to the numbers of those that match.
"""

from __future__ import annotations

import sys
import uuid
from functools import lru_cache
from typing import TYPE_CHECKING

from pyroaring import BitMap

from skipfilter.errors import PatternError
from skipfilter.index import SelectorIndex
from skipfilter.spark.errors import BadInput
from skipfilter.spark.posting_lists import SHARD_BITS

if TYPE_CHECKING:
    from skipfilter.spark.deliveries import Sessions


class Wide:
    """The wide selectors (type, pattern); the number of one is its place in the list.

    Equality is identity, also after pickling.  So a worker that runs several tasks of a
    job finds its index in the cache of `index_of`.
    """

    def __init__(self, selectors: list[tuple[str, str]], base_url: str | None) -> None:
        # Copies that were pickled have equal tokens, and comparing these takes no time.
        self._token = uuid.uuid4()
        self.selectors = selectors
        self.base_url = base_url

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Wide) and self._token == other._token

    def __hash__(self) -> int:
        return hash(self._token)


class _Refused(ValueError):
    """A wide selector is invalid.  The arguments are its number and the reason."""


def unbounded_index(base_url: str | None) -> SelectorIndex:
    """Return an empty index without limits.

    It needs none, because the hub has already accepted these selectors.
    """
    unlimited = sys.maxsize
    return SelectorIndex(
        base_url=base_url,
        max_selectors=unlimited,
        max_length=unlimited,
        max_url_patterns=unlimited,
        max_alike=unlimited,
        regexp_groups=True,
    )


@lru_cache(maxsize=2)
def index_of(wide: Wide) -> SelectorIndex:
    """Return an index that finds the numbers of the wide selectors that match a topic.

    Each process caches the last two.  Raises `_Refused` if a selector is invalid.
    """
    index = unbounded_index(wide.base_url)
    for number, selector in enumerate(wide.selectors):
        try:
            index.add(number, number, [selector])
        except (PatternError, LookupError) as error:
            raise _Refused(number, str(error)) from None
    return index


def require_selectors(wide: Wide, sessions: Sessions) -> None:
    """Raise BadInput, with a session that has it, if a selector is invalid.

    The driver calls this, so that an invalid selector does not fail on a worker.
    """
    try:
        index_of(wide)
    except _Refused as error:
        number, reason = error.args
        holder = BitMap.deserialize(sessions.subscribed[number] or sessions.authorised[number]).min()
        raise BadInput(f"sessions: subscriber_id {(sessions.shard << SHARD_BITS) + holder}: {reason}") from None
