"""Selectors: the wide ones of a job, with a number each, and the index that a worker makes of them."""

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
    """The wide selectors, each with a number.  A worker makes their index once, and keeps it for the tasks after."""

    def __init__(self, selectors: list[tuple[str, str]], base_url: str | None) -> None:
        self._token = uuid.uuid4()
        self.selectors = selectors
        self.base_url = base_url

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Wide) and self._token == other._token

    def __hash__(self) -> int:
        return hash(self._token)


class _Refused(ValueError):
    """A wide selector is none: its number, and why."""


def unbounded_index(base_url: str | None) -> SelectorIndex:
    """An index that takes whatever is a selector: bounds are for the hub that let them in."""
    no = sys.maxsize
    return SelectorIndex(
        base_url=base_url, max_selectors=no, max_length=no, max_url_patterns=no, max_alike=no, regexp_groups=True
    )


@lru_cache(maxsize=2)
def index_of(wide: Wide) -> SelectorIndex:
    """The numbers of the wide selectors, by the topics that they match."""
    index = unbounded_index(wide.base_url)
    for number, selector in enumerate(wide.selectors):
        try:
            index.add(number, number, [selector])
        except (PatternError, LookupError) as error:
            raise _Refused(number, str(error)) from None
    return index


def require_selectors(wide: Wide, sessions: Sessions) -> None:
    """Raise BadInput for what is no selector, here rather than on a worker."""
    try:
        index_of(wide)
    except _Refused as error:
        number, reason = error.args
        holder = BitMap.deserialize(sessions.subscribed[number] or sessions.authorised[number]).min()
        raise BadInput(f"sessions: subscriber_id {(sessions.shard << SHARD_BITS) + holder}: {reason}") from None
