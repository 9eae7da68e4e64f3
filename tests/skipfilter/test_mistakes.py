"""Mistakes that users make: each is refused at once, with a sentence that names the value."""

from __future__ import annotations

import json
import re
import threading
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

from skipfilter import FieldFilter, SelectorIndex, SkipFilter, UriTemplate
from skipfilter.fields import (
    any_of,
    at_least,
    between,
    from_json,
    not_,
    one_of,
    prefix,
    present,
    to_json,
)
from skipfilter.topics import NATS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from skipfilter.fields.criteria import Criterion

readers: SkipFilter[Any, str] = SkipFilter(SelectorIndex())
words: SkipFilter[Any, Any] = SkipFilter(lambda word, letter: letter in word)
rules: FieldFilter[Any] = FieldFilter()


async def coroutine(value: object, key: object) -> bool:
    return False


def generator(value: object, key: object) -> Iterator[bool]:
    yield False


async def asynchronous(value: object, key: object) -> AsyncIterator[bool]:
    yield False


class Deferred:
    async def __call__(self, value: object, key: object) -> bool:
        return False


def filled() -> FieldFilter[str]:
    some: FieldFilter[str] = FieldFilter()
    some.add("ann", ["urgent"])
    return some


a, b = present("a"), present("b")
USD = one_of("currency", "USD")

MISTAKES: list[tuple[Callable[[], Any], str]] = [
    # -- what a filter is made of
    (lambda: SkipFilter(42), "42 is no predicate, such as lambda value, key: ..., and no index"),  # type: ignore[arg-type]
    (lambda: SkipFilter(FieldFilter()), "<FieldFilter: 0 values> is a filter itself: add the values to it"),  # type: ignore[arg-type]
    (lambda: SkipFilter(SelectorIndex), "SelectorIndex is a class; pass an instance of it"),  # type: ignore[arg-type]
    (lambda: SkipFilter(FieldFilter), "FieldFilter is a class; pass an instance of it"),  # type: ignore[arg-type]
    (lambda: SkipFilter(lambda value: True), "is no predicate, such as lambda value, key: ...: too many positional"),  # type: ignore[arg-type, misc]
    (lambda: SkipFilter(coroutine), "what it returns is true whatever it computes"),
    (lambda: SkipFilter(generator), "what it returns is true whatever it computes"),
    (lambda: SkipFilter(asynchronous), "what it returns is true whatever it computes"),
    (lambda: SkipFilter(Deferred()), "what it returns is true whatever it computes"),
    (lambda: SkipFilter(lambda v, k: True, group="city"), "'city' is no function of a value"),  # type: ignore[arg-type]
    (lambda: SkipFilter(lambda v, k: True, group=lambda: 1), "is no function of a value: too many positional"),  # type: ignore[arg-type, misc]
    (lambda: SkipFilter(lambda v, k: True, lock=threading.Lock), "is not a lock, such as threading.RLock()"),  # type: ignore[arg-type]
    (lambda: FieldFilter(lock=threading.Lock), "is not a lock, such as threading.RLock()"),  # type: ignore[arg-type]
    (lambda: SkipFilter(lambda v, k: True, capacity="10"), "capacity='10' is of type str, not int"),  # type: ignore[arg-type]
    (lambda: SkipFilter(lambda v, k: True, max_bytes=1e9), "max_bytes=1000000000.0 is of type float, not int"),  # type: ignore[arg-type]
    (lambda: SelectorIndex(grammars=["nats"]), "grammars=['nats']: not a list of grammars"),  # type: ignore[list-item]
    (lambda: SelectorIndex(max_length="10"), "max_length='10' is of type str, not int"),  # type: ignore[arg-type]
    (lambda: SelectorIndex(matchers={"up": None}), "matchers: up=None makes no matcher of a pattern"),  # type: ignore[dict-item]
    (lambda: UriTemplate(None), "pattern None is of type NoneType, not str"),  # type: ignore[arg-type]
    (lambda: UriTemplate(b"/a"), "pattern b'/a' is of type bytes, not str"),  # type: ignore[arg-type]
    # -- values
    (lambda: readers.add(["bob"], [("exact", "a")]), "value ['bob']: unhashable type: 'list'"),
    (lambda: readers.add_many([(["bob"], [("exact", "a")])]), "value ['bob']: unhashable type: 'list'"),
    (lambda: words.add(["tea"]), "value ['tea']: unhashable type: 'list'"),
    (lambda: rules.add({"x": 1}, a), "value {'x': 1}: unhashable type: 'dict'"),
    (lambda: readers.remove("zoe"), "'zoe' is not in the filter"),
    (lambda: rules["zoe"], "'zoe' is not in the filter"),
    (lambda: words.id_of("zoe"), "'zoe' is not in the filter"),
    (lambda: readers.replace("zoe", [("exact", "a")]), "'zoe' is not in the filter"),
    (lambda: readers.explain("zoe", "a/b"), "'a/b' is not in the filter"),
    (lambda: rules.explain("zoe", {"a": 1}), "message 'zoe' is of type str, not a Mapping"),  # type: ignore[arg-type]
    (lambda: words.add_many("tea"), "'tea' is of type str, and not a list of values"),
    (lambda: words.add_many({"tea": []}), "a predicate takes no selectors; use a SelectorIndex as the source"),
    (lambda: words.add("tea", [("exact", "a")]), "a predicate takes no selectors; use a SelectorIndex as the source"),
    (lambda: words.explain("t", "tea"), "the values of this filter declare nothing"),
    (lambda: readers.add_many(5), "5 is of type int, and not a list of values"),  # type: ignore[arg-type]
    (lambda: readers.add_many(["ann"]), "item 'ann': not a pair of a value and what it declares"),
    (lambda: rules.add_many([("zoe", a), ("zoe", b)]), "'zoe' comes twice, with different criteria"),
    (lambda: readers.add_many([("zoe", [("exact", "a")]), ("zoe", [])]), "'zoe' comes twice, with different selectors"),
    (lambda: rules.add_many([("ann", a, b)]), "not a pair of a value and what it declares"),  # type: ignore[list-item]
    (lambda: readers.add("ann"), "the selectors of 'ann' are missing; if it declares none, pass []"),
    # -- selectors: see also test_index.py
    (lambda: readers.add("ann", pd.DataFrame({"exact": ["a"]})), "not a list; "),
    (lambda: readers.add("ann", [{"mqtt": "a/+"}]), "selector {'mqtt': 'a/+'}: not a (matcher type, pattern); write [('mqtt', 'a/+')]"),  # type: ignore[list-item]
    (lambda: readers.add("ann", [("mqtt", "a/*/b")]), "mqtt pattern 'a/*/b': '*' is no wildcard here: + is one word"),
    # -- criteria and rules
    (lambda: rules.add(a, ["ann"]), "present('a') is an expression; the value comes first, and then what it declares"),
    (lambda: rules.replace(a, "ann"), "present('a') is an expression; the value comes first, and then what it declares"),
    (lambda: rules.add("ann", filled()), "criteria <FieldFilter: 1 values>: not a list"),
    (lambda: rules.add("ann", pd.DataFrame({"a": [1]})), "not a list; write one_of(field, value)"),
    (lambda: rules.add("ann", b"abc"), "criteria b'abc': not a list"),  # type: ignore[arg-type]
    (lambda: rules.add("ann", to_json(a)), "not a list; write from_json(text)"),
    (lambda: rules.add("ann", json.loads(to_json(a))), "not a list; write from_json(mapping)"),
    (lambda: rules.add("ann", a == b), "criteria False: not a list; == compares the expressions themselves"),  # type: ignore[arg-type]
    (lambda: rules.add("ann", present), "call it, as in present(field)"),  # type: ignore[arg-type]
    (lambda: rules.add("ann", "total >= 100"), "criteria 'total >= 100': not a list; write at_least('total', 100)"),
    (lambda: rules.add("ann", ["total > 100"]), "write above('total', 100)"),
    (lambda: rules.add("ann", ["state != 'new'"]), "write not_(one_of('state', 'new'))"),
    (lambda: rules.add("ann", ["state == 'new'"]), "write one_of('state', 'new')"),
    (lambda: present("total < 5"), "the path 'total < 5' is more than names with dots between; write below('total', 5)"),
    (lambda: present("items[0].sku"), "the path 'items[0].sku' is more than names with dots between; all items of a list count"),
    (lambda: present("$.order.total"), "the path '$.order.total' is more than names with dots between"),
    (lambda: any_of(part for part in (a, b)), "write *parts: the parts are arguments of their own"),  # type: ignore[arg-type]
    (lambda: "a" | b, "'a' is not an expression; write present('a')"),
    (lambda: "a" & b, "'a' is not an expression; write present('a')"),
    (lambda: not_(a and b), "an expression is not true or false by itself; write a & b"),
    (lambda: one_of("currency", USD), "is an expression, and no content; combine them with & and |"),
    (lambda: rules.add("ann", [("total", at_least("total", 5))]), "is an expression, and no content"),
    (lambda: one_of("n", range(5)), "range(0, 5) is a range; write one_of(field, *values)"),
    (lambda: one_of("n", (n for n in [1])), "is a generator; write one_of(field, *values)"),  # type: ignore[arg-type]
    (lambda: one_of("n", {"a": 1}.values()), "is a dict_values; write one_of(field, *values)"),
    (lambda: one_of("name", re.compile("x.*")), "is a regular expression, and only values are compared"),
    (lambda: between(5, "total", 10), "5 is not the name of a field"),  # type: ignore[arg-type]
    *(
        (lambda bound=bound: at_least("n", bound), f"{bound!r} is a text, and no number has an order with it")
        for bound in ("10", "1,000", "$100", "5%", ">=5", " 7 ", b"5")
    ),
    (lambda: to_json(filled()), "criteria <FieldFilter: 1 values>: not a list"),
    (lambda: to_json(filled().items()), "is no expression, and no list: to_json takes what one value declares"),
    (lambda: from_json('{"or": []}'), "'or' is none of present, one_of, prefix"),
    (lambda: from_json("present('a')"), "\"present('a')\" is not JSON"),
    (lambda: prefix("name", ""), "'' is not a str with at least one character"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "message"), MISTAKES, ids=[message for _, message in MISTAKES])
def test_a_mistake_is_refused_with_a_sentence(make: Callable[[], Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError, KeyError)) as caught:
        make()
    told = str(caught.value.args[0]) + "".join(getattr(caught.value, "__notes__", []))
    assert message in told
    assert not readers
    assert not rules


def test_what_looks_like_a_mistake_and_is_none() -> None:
    one: FieldFilter[str] = FieldFilter(lock=nullcontext())
    criteria: list[Criterion] = ["urgent", ("currency", "USD")]
    one.add("ann", (criterion for criterion in criteria))
    one.add_many({"bob": at_least("day", "2026-11-29"), "eve": present("first name")})
    assert one.match_all({"day": "2026-12-01", "first name": 1}) == ["bob", "eve"]
    two: SkipFilter[str, str] = SkipFilter(SelectorIndex(grammars=NATS))
    selectors: list[Any] = [("nats", "orders.>"), UriTemplate("/a/{b}")]
    two.add("log", (selector for selector in selectors))
    assert two.match_any("orders.eu") == two.match_any("/a/1") == ["log"]
    assert SkipFilter(str.startswith, group=len).match_any("x") == []
