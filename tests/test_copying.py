"""Each public class: its objects can be copied, pickled and sent to a process, or say why not."""

from __future__ import annotations

import copy
import importlib
import inspect
import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

import hub
import hub.testing
import skipfilter.fields
import skipfilter.topics
from hub.client import ClientError, Event, EventTooLarge, NoAnswer, NotAHub, Refused, Unreachable, Unsendable
from skipfilter import bulk, engines, spark
from skipfilter.fields.expressions import Present
from skipfilter.topics import AMQP

if TYPE_CHECKING:
    from collections.abc import Callable

PACKAGES = [
    *("skipfilter", "skipfilter.bulk", "skipfilter.engines", "skipfilter.fields", "skipfilter.spark"),
    *("skipfilter.topics", "hub", "hub.client", "hub.settings", "hub.testing"),
]
WAYS: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda one: pickle.loads(pickle.dumps(one)),
}
URL = "http://127.0.0.1:1/.well-known/mercure"
COPIED: list[Any] = [
    skipfilter.Amqp("a.*"),
    skipfilter.Stats(1, 2, 3, 4, 5, 6, 7, 8),
    skipfilter.Everything(),
    skipfilter.Exact("a"),
    skipfilter.Explanation(("exact", "a"), None),
    skipfilter.Mqtt("a/+"),
    skipfilter.UriTemplate("/books/{id}"),
    skipfilter.UrlPattern("https://example.com/:name/*"),
    skipfilter.UrlPattern(r"/(\d+)", "https://example.com", regexp_groups=True),
    skipfilter.WordPattern("a.*", AMQP),
    skipfilter.LimitError("too many"),
    skipfilter.PatternError("exact", "a", "no reason"),
    skipfilter.SkipFilterError("no reason"),
    skipfilter.fields.PartExplanation(Present("f"), "no reason"),
    *(skipfilter.topics.AMQP, skipfilter.topics.MQTT, skipfilter.topics.NATS),
    *(bulk.BadInput("no reason"), bulk.BroadcastLimit("no reason"), bulk.PipelineError("no reason")),
    *(spark.MissingJava("no reason"), spark.Workload(seed=2)),
    hub.ConfigurationError("no reason"),
    hub.Grant(publish=[("exact", "a")], subject="alice"),
    hub.HubError("no reason"),
    hub.Settings(dev=True),
    hub.Update(("a", "b"), "data", private=True, type="t"),
    Event("t", "data", "id", None),
    Refused(429, "no reason", 3.0),
    *(kind("no reason") for kind in (EventTooLarge, NoAnswer, NotAHub, Unreachable, Unsendable, ClientError)),
    hub.testing.Clock(),
    hub.testing.RecordedUpdates([hub.Update(("a",))]),
]
NOT_COPIED: list[type] = [
    *(skipfilter.FieldFilter, skipfilter.PostingList, skipfilter.SelectorIndex, skipfilter.SkipFilter),
    *(engines.Filter, engines.InvertedBitmap, engines.LazyDfa, engines.Naive, engines.OptimizedInvertedBitmap),
    *(engines.SkipFilterEngine, engines.SnapshotTrie, engines.TrieEngine),
    *(hub.Client, hub.Hub, hub.SyncClient, spark.Matching),
    *(hub.testing.BlockingSubscriber, hub.testing.MemoryHub, hub.testing.StreamingTransport, hub.testing.Subscriber),
]


def told(one: Any) -> Any:
    """Return what must be equal in a copy: an error and a clock are equal to themselves only."""
    return (getattr(one, "args", ()), vars(one)) if isinstance(one, (Exception, hub.testing.Clock)) else one


def test_each_public_class_is_here() -> None:
    modules = map(importlib.import_module, PACKAGES)
    public = {one for module in modules for name in module.__all__ if inspect.isclass(one := getattr(module, name))}
    interfaces = {one for one in public if getattr(one, "_is_protocol", False) or inspect.isabstract(one)}
    assert {*map(type, COPIED), *NOT_COPIED} >= public - interfaces


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("one", COPIED, ids=lambda one: type(one).__name__)
def test_what_only_has_a_content_can_be_copied(one: Any, way: str) -> None:
    copied = WAYS[way](one)
    assert type(copied) is type(one)
    assert told(copied) == told(one)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", NOT_COPIED, ids=lambda kind: kind.__name__)
def test_what_is_used_by_a_program_cannot_be_copied(kind: type, way: str) -> None:
    with pytest.raises(TypeError, match=rf"^{kind.__name__} cannot be copied or pickled: make a new one$"):
        WAYS[way](object.__new__(kind))


def _refuse(pattern: str) -> None:
    skipfilter.UriTemplate(pattern)


def _identity(one: Any) -> Any:
    return one


@pytest.mark.processes
def test_objects_and_errors_return_from_another_process() -> None:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        for one, back in zip(COPIED, pool.map(_identity, COPIED), strict=True):
            assert told(back) == told(one)
        with pytest.raises(skipfilter.PatternError, match=r"^uritemplate pattern '\{': ") as caught:
            pool.submit(_refuse, "{").result(60)
    assert caught.value.pattern == "{"


def test_a_snapshot_can_be_copied() -> None:
    engine: engines.SnapshotTrie[str] = engines.SnapshotTrie(AMQP)
    engine.subscribe("a.*", "x")
    snapshot = engine.snapshot()
    for made in (way(snapshot) for way in WAYS.values()):
        assert made.lookup("a.b") == {"x"}
        assert made.subscriptions() == [("a.*", "x")]


def test_a_copy_of_a_url_pattern_shares_its_automata() -> None:
    pattern = skipfilter.UrlPattern(r"/(\d+)", "https://example.com")
    for way in WAYS.values():
        assert way(pattern).conditions == pattern.conditions != ()
