"""The topic-matching algorithms of the literature behind one interface.

| engine | choose it when |
|---|---|
| `Naive` | there is a handful of patterns; or to test another engine against |
| `InvertedBitmap` | the topics are few and known beforehand, and lookups are all that counts |
| `OptimizedInvertedBitmap` | a pattern's bits must be few, and topics mostly match little |
| `TrieEngine` | nothing below applies: lookups and changes are cheap, at any number of patterns |
| `LazyDfa` | the patterns hardly ever change, and many have a `#` |
| `SnapshotTrie` | threads look up while others subscribe, or somebody wants to see all subscriptions at one moment |
| `SkipFilterEngine` | topics come back, so that an answer is worth remembering |

>>> from skipfilter.engines import ENGINES
>>> from skipfilter.words import AMQP
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
from skipfilter.engines.inverted_bitmap import InvertedBitmap
from skipfilter.engines.lazy_dfa import LazyDfa
from skipfilter.engines.naive import Naive
from skipfilter.engines.optimized_inverted_bitmap import OptimizedInvertedBitmap
from skipfilter.engines.skip_filter import SkipFilterEngine
from skipfilter.engines.snapshot_trie import SnapshotTrie
from skipfilter.engines.trie import TrieEngine

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from skipfilter.words import Grammar

__all__ = [
    "ENGINES",
    "Engine",
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
"""What a grammar alone makes an engine of.  `InvertedBitmap` is not here: it wants its topics, too."""
