"""Wide selectors: the widely shared ones of a job, numbered, and a worker's index of
them.
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
    """The wide selectors, numbered.

    A worker indexes them once, and keeps the index.
    """

    def __init__(self, selectors: list[tuple[str, str]], base_url: str | None) -> None:
        self._token = uuid.uuid4()  # equality across pickles, without comparing the selectors
        self.selectors = selectors
        self.base_url = base_url

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Wide) and self._token == other._token

    def __hash__(self) -> int:
        return hash(self._token)


class _Refused(ValueError):
    """A wide selector is invalid: its number, and the reason."""


def unbounded_index(base_url: str | None) -> SelectorIndex:
    """Return an index without limits: the hub has accepted these selectors already."""
    no = sys.maxsize
    return SelectorIndex(
        base_url=base_url, max_selectors=no, max_length=no, max_url_patterns=no, max_alike=no, regexp_groups=True
    )


@lru_cache(maxsize=2)
def index_of(wide: Wide) -> SelectorIndex:
    """Return an index of topics to the numbers of the wide selectors that match."""
    index = unbounded_index(wide.base_url)
    for number, selector in enumerate(wide.selectors):
        try:
            index.add(number, number, [selector])
        except (PatternError, LookupError) as error:
            raise _Refused(number, str(error)) from None
    return index


def require_selectors(wide: Wide, sessions: Sessions) -> None:
    """Raise BadInput if a selector is invalid, in the driver and not on a worker."""
    try:
        index_of(wide)
    except _Refused as error:
        number, reason = error.args
        holder = BitMap.deserialize(sessions.subscribed[number] or sessions.authorised[number]).min()
        raise BadInput(f"sessions: subscriber_id {(sessions.shard << SHARD_BITS) + holder}: {reason}") from None
