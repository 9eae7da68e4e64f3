"""Wide selectors: the numbered selectors of a job, and a worker's index of them.

A selector is wide if it is not exact, or if its bitmaps are large.  A worker has all
wide selectors, and builds one index from a topic to the numbers of those that match.

    0  mqtt  #                       /a/1  ──►  0, 1
    1  uritemplate  /a/{id}   ──►    /b    ──►  0
    2  exact  /c                     /c    ──►  0, 2
"""

from __future__ import annotations

import sys
import uuid
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from skipfilter.bulk.errors import BadInput
from skipfilter.bulk.posting_lists import SHARD_BITS
from skipfilter.errors import PatternError
from skipfilter.posting_list import union
from skipfilter.topics.index import SelectorIndex

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from skipfilter.bulk.deliveries import Sessions


NARROW_BYTES: Final = 2_048
"""An exact selector is wide if its two bitmaps have more bytes than this."""


class Wide:
    """The wide selectors (type, pattern); the number of one is its place in the list.

    Equality is identity, also after pickling.  So a worker that runs several tasks of a
    job finds its index in the cache of `index_of`.
    """

    def __init__(self, selectors: list[tuple[str, str]], base_url: str | None, declared: NDArray[np.int64]) -> None:
        # Copies that were pickled have equal tokens, and comparing these takes no time.
        self._token = uuid.uuid4()
        self.selectors = selectors
        self.base_url = base_url
        self.declared = declared
        """The number of ids that declare each."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Wide) and self._token == other._token

    def __hash__(self) -> int:
        return hash(self._token)


class _Refused(ValueError):
    """A wide selector is invalid.  The arguments are its number and the reason."""


def index_bytes(type: str, pattern: str) -> int:
    """Return about how many bytes a selector takes in an index.

    Measured: 0.9 KB for an exact selector, 1.3 to 2.8 KB for a pattern, which has a
    node for each segment or word, and 8 KB more for the automata of a URL Pattern with
    groups.  The result was between 0.6 and 1.6 times as much.
    """
    if type == "exact":
        return 900 + len(pattern)
    segments = sum(map(pattern.count, "./{"))
    return 700 + 200 * segments + len(pattern) + (8_000 if type == "urlpattern" and "(" in pattern else 0)


@lru_cache(maxsize=1)
def index_of(wide: Wide) -> SelectorIndex:
    """Return an index that finds the numbers of the wide selectors that match a topic.

    It has no limits, because the hub has already accepted these selectors.  Each
    process caches the last index.  Raises `_Refused` if a selector is invalid.
    """
    unlimited = sys.maxsize
    index = SelectorIndex(
        base_url=wide.base_url,
        max_selectors=unlimited,
        max_length=unlimited,
        max_url_patterns=unlimited,
        max_alike=unlimited,
        regexp_groups=True,
    )
    for number, selector in enumerate(wide.selectors):
        try:
            index.add(number, number, [selector])
        except (PatternError, LookupError) as error:
            raise _Refused(number, str(error)) from None
    return index


def in_parts(selectors: list[tuple[str, str]], base_url: str | None, max_bytes: int) -> Iterator[Wide]:
    """Yield distinct selectors in parts, each with an index of up to some `max_bytes`.

    A part has at least one selector.  `declared` is 0 for all of them.
    """
    part: list[tuple[str, str]] = []
    size = 0
    for selector in selectors:
        more = index_bytes(*selector)
        if part and size + more > max_bytes:
            yield Wide(part, base_url, np.zeros(len(part), np.int64))
            part, size = [], 0
        part.append(selector)
        size += more
    if part:
        yield Wide(part, base_url, np.zeros(len(part), np.int64))


def find_numbers(batches: Iterable[pa.RecordBatch], wide: Wide) -> Iterator[pa.RecordBatch]:
    """Yield (topic, wide, declared) of each topic in the first column of the batches.

    These are the numbers of the wide selectors that match the topic, and the sum of
    their `declared`.  A topic takes some 3 µs.
    """
    index = index_of(wide)
    for batch in batches:
        lists = map(index.posting_lists, batch.column(0).to_pylist())
        found = [union([postings.ids for postings in some]).to_array() for some in lists]
        # An Arrow column of lists: all numbers in a row, and where each list begins.
        offsets = np.zeros(len(found) + 1, np.int32)
        np.cumsum([len(numbers) for numbers in found], out=offsets[1:])
        numbers = np.fromiter((number for one in found for number in one), np.int32, offsets[-1])
        declared = np.zeros(len(numbers) + 1, np.int64)
        np.cumsum(wide.declared[numbers], out=declared[1:])
        lists, sums = pa.ListArray.from_arrays(offsets, numbers), pa.array(np.diff(declared[offsets]))
        yield pa.record_batch([batch.column(0), lists, sums], ["topic", "wide", "declared"])


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
