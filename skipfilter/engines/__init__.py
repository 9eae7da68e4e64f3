"""The topic-matching algorithms of the literature behind one interface.

| engine | choose it if |
|---|---|
| `Naive` | there are only a handful of patterns, or as a reference in tests |
| `InvertedBitmap` | topics are few and known in advance, and only lookups matter |
| `OptimizedInvertedBitmap` | each pattern must cost few bits, and a topic matches few |
| `TrieEngine` | nothing else applies: lookups and changes are cheap |
| `LazyDfa` | patterns hardly ever change, and many have a `#` |
| `SnapshotTrie` | threads look up while others subscribe, or snapshots are needed |
| `SkipFilterEngine` | topics repeat, so that cached answers are useful |

A `Filter` only answers whether any subscription matches; it needs no values.

Belongs here: algorithms as they were published, behind the interface in `base`.
Does not belong here: what SelectorIndex and the hub use (`topics`, `core`).

>>> from skipfilter.engines import ENGINES
>>> from skipfilter.topics import AMQP
>>> engine = ENGINES["trie"](AMQP)
>>> handle = engine.subscribe("forex.*", "ann")
>>> _ = engine.subscribe("#.usd", "bob")
>>> sorted(engine.lookup("forex.usd")), engine.matches("stock.nyse")
(['ann', 'bob'], False)
>>> engine.unsubscribe(handle)
>>> engine.lookup("forex.usd")
{'bob'}
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from skipfilter.engines.base import Engine
from skipfilter.engines.filtering import Filter
from skipfilter.engines.inverted_bitmap import InvertedBitmap
from skipfilter.engines.lazy_dfa import LazyDfa
from skipfilter.engines.naive import Naive
from skipfilter.engines.optimized_inverted_bitmap import OptimizedInvertedBitmap
from skipfilter.engines.skip_filter import SkipFilterEngine
from skipfilter.engines.snapshot_trie import SnapshotTrie
from skipfilter.engines.trie import TrieEngine

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from skipfilter.topics.words import Grammar

__all__ = [
    "ENGINES",
    "Engine",
    "Filter",
    "InvertedBitmap",
    "LazyDfa",
    "Naive",
    "OptimizedInvertedBitmap",
    "SkipFilterEngine",
    "SnapshotTrie",
    "TrieEngine",
]

ENGINES: Mapping[str, Callable[[Grammar], Engine[Any]]] = {
    "naive": Naive,
    "optimized_inverted_bitmap": OptimizedInvertedBitmap,
    "trie": TrieEngine,
    "lazy_dfa": LazyDfa,
    "snapshot_trie": SnapshotTrie,
    "skip_filter": SkipFilterEngine,
}
"""The engines that need only a grammar; `InvertedBitmap` also needs its topics."""
