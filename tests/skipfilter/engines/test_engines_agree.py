"""All engines agree with the naive one, and the naive one with a slow matcher of this
file.

The last part plants the bugs of published matchers, and asserts that the state machine
finds each of them by its results alone: the planted engines have no `_check`.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from pyroaring import BitMap, FrozenBitMap

from skipfilter.engines import (
    ENGINES,
    Filter,
    InvertedBitmap,
    LazyDfa,
    Naive,
    OptimizedInvertedBitmap,
    SkipFilterEngine,
    SnapshotTrie,
    TrieEngine,
)
from skipfilter.errors import PatternError
from skipfilter.topics.words import AMQP, MANY, MQTT, NATS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from skipfilter.engines import Engine
    from skipfilter.engines.snapshot_trie import Snapshot
    from skipfilter.topics.words import Grammar, Words


def slowly(grammar: Grammar, pattern: str, topic: str) -> bool:
    """Whether `pattern` matches `topic`, read off the specifications."""
    if grammar is NATS:
        # `>` is one word and any others; an empty word is none.
        pattern = "*.#".join(pattern.rsplit(">", 1)) if pattern[-1] == ">" else pattern
        return "" not in topic.split(".") and slowly(AMQP, pattern, topic)
    separator, one = (".", "*") if grammar is AMQP else ("/", "+")

    def match(pattern: list[str], words: list[str]) -> bool:
        if not pattern:
            return not words
        if pattern[0] == "#":
            return any(match(pattern[1:], words[taken:]) for taken in range(len(words) + 1))
        return bool(words) and pattern[0] in (one, words[0]) and match(pattern[1:], words[1:])

    if grammar is MQTT and topic.startswith("$") and pattern[0] in "+#":
        return False
    if grammar is AMQP:
        return match(pattern.split(".") if pattern else [], topic.split(".") if topic else [])
    return match(pattern.split(separator), topic.split(separator))


# -- two small worlds

TOPICS: Mapping[Grammar, list[str]] = {
    AMQP: [".".join(words) for length in range(4) for words in product("abz", repeat=length)],
    MQTT: [
        *("/".join(words) for length in (1, 2) for words in product(["a", "z", "", "$a"], repeat=length)),
        *("a/a/a", "a/z/a", "z/a/a", "$a/a/a", "$a/z/", "//"),
    ],
    NATS: [".".join(words) for length in range(4) for words in product(["a", "b", "z", ""], repeat=length)],
}
"""No pattern of the machine names z."""

PATTERNS: Mapping[Grammar, list[str]] = {
    AMQP: ["", *(".".join(words) for length in (1, 2, 3) for words in product("ab*#", repeat=length))],
    MQTT: [
        "#",
        *("/".join(words) for words in product(["a", "+", "$a"], ["", "a", "+", "#"])),
        *("/".join(words) for words in product(["a", "+", "", "$a"], ["a", "+"], ["a", "#"])),
        *("a", "+", "$a", "/", "/+", "/#"),
    ],
    NATS: [
        ">",
        *(".".join(words) for length in (1, 2, 3) for words in product("ab*", repeat=length)),
        *(".".join([*words, ">"]) for length in (1, 2) for words in product("ab*", repeat=length)),
    ],
}


class InPortions(OptimizedInvertedBitmap[str]):
    """Has portions of one and two columns, and orders its columns at each question."""

    def matches(self, topic: str) -> bool:
        self._order()
        return super().matches(topic)

    def _portions(self, start: BitMap) -> tuple[FrozenBitMap, ...]:
        return FrozenBitMap([0]), FrozenBitMap([1, 2])


def every_engine(grammar: Grammar) -> dict[str, Engine[str]]:
    engines = {name: make(grammar) for name, make in ENGINES.items()}
    engines["inverted_bitmap"] = InvertedBitmap(grammar, TOPICS[grammar])
    engines["optimized_inverted_bitmap, portions"] = InPortions(grammar)
    engines["lazy_dfa, one state"] = LazyDfa(grammar, budget=1)
    engines["lazy_dfa, four states"] = LazyDfa(grammar, budget=4)
    engines["skip_filter, two topics"] = SkipFilterEngine(grammar, capacity=2)
    return engines


class Interest(Filter):
    """A Filter as an engine, whose lookups have no values."""

    def subscribe(self, pattern: str, value: object = None) -> int:
        return super().subscribe(pattern)


def every_filter(grammar: Grammar) -> dict[str, Interest]:
    filters = {name: Interest(grammar, make) for name, make in ENGINES.items()}
    return filters | {"default": Interest(grammar)}


AT_ONCE = 4
"""The number of subscriptions around which the machine adds and removes."""


class Agreement(RuleBasedStateMachine):
    """`live` has the current subscriptions, `gone` the former ones, each with its
    handles in the engines.
    """

    grammar: Grammar

    def make(self) -> tuple[dict[str, Engine[str]], dict[str, Interest]]:
        raise NotImplementedError

    def __init__(self) -> None:
        super().__init__()
        self.engines, self.filters = self.make()
        self.live: list[tuple[str, str, dict[str, int]]] = []
        self.gone: list[tuple[str, str, dict[str, int]]] = []
        self.snapshots: list[tuple[Snapshot[str], list[tuple[str, str]]]] = []

    def everything(self) -> list[tuple[str, Engine[str] | Interest]]:
        return [*self.engines.items(), *((f"filter, {name}", some) for name, some in self.filters.items())]

    def join(self, pattern: str, value: str) -> None:
        handles = {name: engine.subscribe(pattern, value) for name, engine in self.everything()}
        for _, _, others in self.live + self.gone:
            assert all(others[name] != handle for name, handle in handles.items())
        self.live.append((pattern, value, handles))

    def leave(self, which: int) -> None:
        leaving = self.live.pop(which % len(self.live))
        for name, engine in self.everything():
            engine.unsubscribe(leaving[2][name])
        self.gone.append(leaving)

    @rule(data=st.data(), value=st.sampled_from("xyz"), leaving=st.integers(0))
    def subscribe(self, data: st.DataObject, value: str, leaving: int) -> None:
        self.join(data.draw(st.sampled_from(PATTERNS[self.grammar])), value)
        if len(self.live) > AT_ONCE:
            self.leave(leaving)

    @precondition(lambda self: self.live or self.gone)
    @rule(which=st.integers(0), value=st.sampled_from("xyz"))
    def subscribe_to_a_pattern_that_was_there(self, which: int, value: str) -> None:
        known = self.live + self.gone
        self.join(known[which % len(known)][0], value)

    @precondition(lambda self: self.live)
    @rule(which=st.integers(0))
    def unsubscribe(self, which: int) -> None:
        self.leave(which)

    @precondition(lambda self: self.gone)
    @rule(which=st.integers(0))
    def unsubscribe_what_is_gone(self, which: int) -> None:
        _, _, handles = self.gone[which % len(self.gone)]
        for name, engine in self.everything():
            with pytest.raises(KeyError):
                engine.unsubscribe(handles[name])

    @rule(data=st.data())
    def ask_about_some_or_all(self, data: st.DataObject) -> None:
        topics = TOPICS[self.grammar]
        self.ask(data.draw(st.just(topics) | st.lists(st.sampled_from(topics), min_size=1, max_size=4)))

    def ask(self, topics: list[str]) -> None:
        for topic in topics:
            wanted = {value for pattern, value, _ in self.live if slowly(self.grammar, pattern, topic)}
            for name, engine in self.engines.items():
                found = engine.lookup(topic)
                assert found == wanted, (name, topic)
                assert engine.matches(topic) == bool(wanted), (name, topic)
                found.add("not the engine's")
            for name, some in self.filters.items():
                assert some.matches(topic) == bool(wanted), (name, topic)

    @rule()
    def keep_a_snapshot(self) -> None:
        for engine in self.engines.values():
            if isinstance(engine, SnapshotTrie):
                self.snapshots.append((engine.snapshot(), [(pattern, value) for pattern, value, _ in self.live]))

    @invariant()
    def check(self) -> None:
        for name, engine in self.everything():
            engine._check()
            assert len(engine) == len(self.live), name

    def teardown(self) -> None:
        for snapshot, live in self.snapshots:
            assert snapshot.subscriptions() == live
            assert len(snapshot) == len(live)
            for value in "xyz":
                assert set(snapshot.topics(value)) == {pattern for pattern, other in live if other == value}
            for topic in TOPICS[self.grammar][::5]:
                wanted = {value for pattern, value in live if slowly(self.grammar, pattern, topic)}
                assert snapshot.lookup(topic) == wanted
                assert snapshot.matches(topic) == bool(wanted)


def machine(
    of: Grammar,
    engines: Callable[[Grammar], dict[str, Engine[str]]],
    filters: Callable[[Grammar], dict[str, Interest]] = lambda grammar: {},
) -> type[Agreement]:
    class Machine(Agreement):
        grammar = of

        def make(self) -> tuple[dict[str, Engine[str]], dict[str, Interest]]:
            return engines(of), filters(of)

    return Machine


TestAmqp = machine(AMQP, every_engine, every_filter).TestCase
TestMqtt = machine(MQTT, every_engine, every_filter).TestCase
TestNats = machine(NATS, every_engine, every_filter).TestCase
TestAmqp.settings = TestMqtt.settings = TestNats.settings = settings(
    max_examples=100, stateful_step_count=30, deadline=None
)


# -- worked examples and specifications


def filled(engine: Engine[str], *patterns: str) -> Engine[str]:
    for pattern in patterns:
        engine.subscribe(pattern, pattern)
    return engine


EXAMPLES: list[tuple[Grammar, list[str], dict[str, set[str]]]] = [
    (
        # iMatix, topic matching; there "forex.*" also matches forex, but not in AMQP.
        AMQP,
        ["forex.*", "*.usd", "*.eur", "*"],
        {
            "forex": {"*"},
            "forex.gbp": {"forex.*"},
            "forex.eur": {"forex.*", "*.eur"},
            "forex.usd": {"forex.*", "*.usd"},
            "trade": {"*"},
            "trade.usd": {"*.usd"},
            "trade.jpy": set(),
        },
    ),
    (
        # iMatix and WSO2, optimised topic routing
        AMQP,
        ["trade", "forex.eur", "forex.*"],
        {
            "forex.eur": {"forex.eur", "forex.*"},
            "forex.pound": {"forex.*"},
            "forex.jpy": {"forex.*"},
            "trade": {"trade"},
            "forex": set(),
            "forex.eur.spot": set(),
        },
    ),
    (
        AMQP,  # WSO2, inverted bitmap, and its wildcards
        ["WSO2", "WSO2.*", "WSO2.Products", "WSO2.#"],
        {
            "WSO2": {"WSO2", "WSO2.#"},
            "WSO2.Products": {"WSO2.*", "WSO2.Products", "WSO2.#"},
            "WSO2.Products.MB": {"WSO2.#"},
        },
    ),
    (
        AMQP,  # T. Treat, inverted bitmap
        ["forex.*", "stock.nyse", "*.*", "stock.*"],
        {
            "forex.usd": {"forex.*", "*.*"},
            "forex.eur": {"forex.*", "*.*"},
            "stock.nasdaq": {"*.*", "stock.*"},
            "stock.nyse": {"stock.nyse", "*.*", "stock.*"},
        },
    ),
    (
        AMQP,  # T. Treat, optimized inverted bitmap and trie
        ["forex.*", "stock.nyse", "index", "stock.*"],
        {"forex.eur": {"forex.*"}, "stock.nyse": {"stock.nyse", "stock.*"}, "index": {"index"}, "stock": set()},
    ),
    (
        AMQP,  # T. Treat, the problem
        ["forex.usd", "forex.*", "stock.nasdaq.msft"],
        {
            "forex.gbp": {"forex.*"},
            "forex.usd": {"forex.usd", "forex.*"},
            "stock.nasdaq.msft": {"stock.nasdaq.msft"},
        },
    ),
    (
        AMQP,  # AMQP 0-9-1, 3.1.3.3
        ["*.stock.#"],
        {"usd.stock": {"*.stock.#"}, "eur.stock.db": {"*.stock.#"}, "stock.nasdaq": set()},
    ),
    (
        AMQP,  # RabbitMQ, the trie
        ["a.b.c", "a.*.b.c", "a.#.c", "b.b.c"],
        {
            "a.d.d.d.c": {"a.#.c"},
            "a.b.c": {"a.b.c", "a.#.c"},
            "a.c": {"a.#.c"},
            "a.x.b.c": {"a.*.b.c", "a.#.c"},
            "b.b.c": {"b.b.c"},
        },
    ),
    (
        MQTT,  # MQTT 5.0, 4.7.1.2
        ["sport/tennis/player1/#", "sport/#", "#", "sport/tennis/#"],
        {
            "sport/tennis/player1": {"sport/tennis/player1/#", "sport/#", "#", "sport/tennis/#"},
            "sport/tennis/player1/ranking": {"sport/tennis/player1/#", "sport/#", "#", "sport/tennis/#"},
            "sport/tennis/player1/score/wimbledon": {"sport/tennis/player1/#", "sport/#", "#", "sport/tennis/#"},
            "sport": {"sport/#", "#"},
            "news": {"#"},
        },
    ),
    (
        MQTT,  # MQTT 5.0, 4.7.1.3
        ["sport/tennis/+", "sport/+", "+", "+/tennis/#", "sport/+/player1", "+/+", "/+"],
        {
            "sport/tennis/player1": {"sport/tennis/+", "+/tennis/#", "sport/+/player1"},
            "sport/tennis/player1/ranking": {"+/tennis/#"},
            "sport": {"+"},
            "sport/": {"sport/+", "+/+"},
            "/finance": {"+/+", "/+"},
            "": {"+"},
        },
    ),
    (
        MQTT,  # MQTT 5.0, 4.7.2
        ["#", "+/monitor/Clients", "$SYS/#", "$SYS/monitor/+"],
        {"$SYS/monitor/Clients": {"$SYS/#", "$SYS/monitor/+"}, "$SYS": {"$SYS/#"}, "SYS/monitor/Clients": {"#", "+/monitor/Clients"}},
    ),
    (
        MQTT,  # MQTT 5.0, 4.7.3: no normalisation, and case counts
        ["ACCOUNTS", "Accounts", "/finance", "finance", "Accounts payable"],
        {"ACCOUNTS": {"ACCOUNTS"}, "Accounts": {"Accounts"}, "/finance": {"/finance"}, "finance": {"finance"}, "Accounts payable": {"Accounts payable"}},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("grammar", "patterns", "answers"), EXAMPLES)
def test_worked_examples(grammar: Grammar, patterns: list[str], answers: dict[str, set[str]]) -> None:
    engines = every_engine(grammar) | {"inverted_bitmap": InvertedBitmap(grammar, answers)}
    for name, engine in engines.items():
        filled(engine, *patterns)
        for topic, wanted in answers.items():
            assert engine.lookup(topic) == wanted, name
            assert engine.matches(topic) == bool(wanted), name
            assert {pattern for pattern in patterns if slowly(grammar, pattern, topic)} == wanted
    for name, some in every_filter(grammar).items():
        for pattern in patterns:
            some.subscribe(pattern)
        some._check()
        for topic, wanted in answers.items():
            assert some.matches(topic) == bool(wanted), name


BY_NAME = [pytest.param(name, id=name) for name in every_engine(AMQP)]


@pytest.mark.parametrize("name", BY_NAME)
def test_two_equal_subscriptions_end_independently(name: str) -> None:
    for pattern in ("a.b", "a.*", "a.#", "#.a.b"):
        engine = every_engine(AMQP)[name]
        first, second = engine.subscribe(pattern, "x"), engine.subscribe(pattern, "x")
        assert first != second
        assert len(engine) == 2
        engine.unsubscribe(first)
        assert engine.lookup("a.b") == {"x"}
        engine.unsubscribe(second)
        assert engine.lookup("a.b") == set()
        assert not engine.matches("a.b")
        assert engine.subscribe(pattern, "x") not in (first, second)


@pytest.mark.parametrize("name", BY_NAME)
def test_a_refused_pattern_changes_nothing(name: str) -> None:
    engine: Engine[Any] = every_engine(AMQP)[name]
    for pattern in ("a..b", "a.b*", "*" + 100 * ".*"):
        with pytest.raises(PatternError):
            engine.subscribe(pattern, "x")
    for pattern in ("a.b", "a.*", "a.#", "#.a.b"):
        with pytest.raises(TypeError):
            engine.subscribe(pattern, [])
    with pytest.raises(KeyError, match="7"):
        engine.unsubscribe(7)
    engine._check()
    assert len(engine) == 0
    assert engine.lookup("a.b") == set()
    engine = every_engine(MQTT)[name]
    for pattern in ("", "#/a", "a/#/b", "a+", "a/#b", "a\x00"):
        with pytest.raises(PatternError):
            engine.subscribe(pattern, "x")


@pytest.mark.parametrize("name", BY_NAME)
def test_equivalent_spellings_are_one_pattern(name: str) -> None:
    engine = filled(every_engine(AMQP)[name], "a.#.*", "a.*.#", "a.#.*.#", "a.#.#.*")
    assert engine.lookup("a.b") == {"a.#.*", "a.*.#", "a.#.*.#", "a.#.#.*"}
    assert engine.lookup("a") == set()


def test_a_topic_outside_the_space_of_an_inverted_bitmap() -> None:
    engine: InvertedBitmap[str] = InvertedBitmap(AMQP, ["a.b"])
    for ask in (engine.lookup, engine.matches):
        with pytest.raises(LookupError, match=r"topic 'a\.c' is not one of the 1 topics of this engine"):
            ask("a.c")


@pytest.mark.parametrize("grammar", [AMQP, MQTT], ids=lambda grammar: grammar.name)
@pytest.mark.parametrize("topic", [None, 0, b"a", ["a"]])
def test_a_topic_that_is_not_a_string_is_named(grammar: Grammar, topic: Any) -> None:
    for name, engine in every_engine(grammar).items():
        for count in range(2):  # without a subscription, and with one
            for ask in (engine.lookup, engine.matches):
                with pytest.raises(TypeError) as caught:
                    ask(topic)
                assert repr(topic) in str(caught.value), name
            engine.subscribe("#", f"x{count}")


def test_topics_come_and_go_in_an_inverted_bitmap() -> None:
    engine: InvertedBitmap[str] = InvertedBitmap(AMQP, ["a.b"])
    handle = engine.subscribe("a.*", "x")
    engine.subscribe("#", "y")
    engine.add_topic("a.c")
    engine.add_topic("b")
    engine.add_topic("a.b")
    engine._check()
    assert engine.lookup("a.c") == engine.lookup("a.b") == {"x", "y"}
    engine.unsubscribe(handle)
    engine.subscribe("a.c", "z")
    assert engine.lookup("a.c") == {"y", "z"}
    engine.remove_topic("a.c")
    engine._check()
    for ask in (engine.lookup, engine.matches, engine.remove_topic):
        with pytest.raises(LookupError, match=r"topic 'a\.c' is not one of the 2 topics of this engine"):
            ask("a.c")
    engine.add_topic("a.c")
    assert engine.lookup("a.c") == {"y", "z"}
    with pytest.raises(TypeError, match="7"):
        engine.add_topic(7)  # type: ignore[arg-type]
    assert len(engine._rows) == 3
    hidden: InvertedBitmap[str] = InvertedBitmap(MQTT, [])
    hidden.subscribe("#", "x")
    hidden.add_topic("$SYS")
    assert not hidden.matches("$SYS")


def test_a_budget_without_states_works() -> None:
    with pytest.raises(ValueError, match="budget must be at least 1, not 0"):
        LazyDfa(AMQP, budget=0)


# -- bugs of published matchers, one by one


@pytest.mark.parametrize("name", BY_NAME)
def test_a_reused_id_has_no_rows_of_its_first_use(name: str) -> None:
    """T.

    Treat's optimized inverted bitmap kept the null rows: lookup("b") found b.c.
    """
    for first, second, topic in (("a", "b.c", "b"), ("*", "*.b", "a"), ("a.*", "a.*.b", "a.b"), ("*.#", "*.b", "a")):
        engine = every_engine(AMQP)[name]
        engine.unsubscribe(engine.subscribe(first, "x"))
        engine.subscribe(second, "y")
        assert engine.lookup(topic) == set()
        assert not engine.matches(topic)


@pytest.mark.parametrize("name", BY_NAME)
def test_unsubscribing_twice_gives_no_id_to_two(name: str) -> None:
    """T. Treat's bitmaps freed the position again: lookup("p") found q's subscriber."""
    for p, q, topic in (("b", "a", "b"), ("*.b", "*.a", "a.b"), ("b.#", "a.#", "b")):
        engine = every_engine(AMQP)[name]
        handle = engine.subscribe("*.z", "x")
        engine.unsubscribe(handle)
        with pytest.raises(KeyError):
            engine.unsubscribe(handle)
        engine.subscribe(p, "p")
        engine.subscribe(q, "q")
        assert engine.lookup(topic) == {"p"}


@pytest.mark.parametrize("name", BY_NAME)
def test_a_pattern_that_is_added_again_has_no_old_results(name: str) -> None:
    """A cached result whose stamp is the sum of the counters of its patterns contains a
    value that left.
    """
    for pattern in ("a", "*", "#", "#.a"):
        engine = every_engine(AMQP)[name]
        handle = engine.subscribe(pattern, "x")
        assert engine.lookup("a") == {"x"}
        engine.unsubscribe(handle)
        engine.subscribe(pattern, "y")
        assert engine.lookup("a") == {"y"}


# -- the same bugs, planted: does the machine find them?


class KeepsLengthRows(OptimizedInvertedBitmap[str]):
    """The null rows, that is the rows by length here, are not cleared."""

    def _remove_column(self, words: Words) -> None:
        super()._remove_column(words)
        if MANY not in words:
            self._lengths.setdefault(len(words), BitMap()).add(self._free[-1])

    def _matching(self, words: list[str], hidden: bool) -> BitMap:
        return super()._matching(words, hidden) & BitMap(self._columns)

    def _any_matching(self, words: list[str], hidden: bool) -> bool:
        return bool(self._matching(words, hidden))

    def _check(self) -> None:
        pass


class FreesTwice(OptimizedInvertedBitmap[str]):
    """Unsubscribing once more frees the id once more."""

    def __init__(self, grammar: Grammar) -> None:
        super().__init__(grammar)
        self._freed: dict[int, int] = {}

    def unsubscribe(self, handle: int) -> None:
        if handle not in self._subscriptions and handle in self._freed:
            self._free.append(self._freed[handle])
        free = len(self._free)
        super().unsubscribe(handle)
        if len(self._free) > free:
            self._freed[handle] = self._free[-1]

    def _check(self) -> None:
        pass


class StampsWithASum(TrieEngine[str]):
    """An engine that keeps a result while the sum of the changes of its patterns stays
    the same.
    """

    def __init__(self, grammar: Grammar) -> None:
        super().__init__(grammar)
        self._changes: dict[Words, int] = {}
        self._results: dict[str, tuple[int, set[str]]] = {}

    def subscribe(self, pattern: str, value: str) -> int:
        words = self._grammar.parse_pattern(pattern)
        self._changes[words] = self._changes.get(words, 0) + 1
        return super().subscribe(pattern, value)

    def unsubscribe(self, handle: int) -> None:
        words, _ = self._subscriptions[handle]
        super().unsubscribe(handle)
        self._changes[words] += 1
        if self.trie.node(words).value is None:
            self.trie.prune(words)
            del self._changes[words]

    def lookup(self, topic: str) -> set[str]:
        changes = {id(self.trie.node(words)): count for words, count in self._changes.items()}
        found = self.trie.find(self._grammar.parse_topic(topic), hidden=self._grammar.hides(topic))
        stamp = sum(changes[id(node)] for node in found)
        if topic not in self._results or self._results[topic][0] != stamp:
            self._results[topic] = stamp, super().lookup(topic)
        return set(self._results[topic][1])

    def _check(self) -> None:
        pass


class KeepsStates(LazyDfa[str]):
    """The states outlive the nodes they are made of."""

    def _drop(self) -> None:
        pass

    def _check(self) -> None:
        pass


class KeepsResults(LazyDfa[str]):
    """A known pattern's new subscriber does not outdate the results."""

    def subscribe(self, pattern: str, value: str) -> int:
        changes = self._changes
        handle = super().subscribe(pattern, value)
        self._changes = changes
        return handle

    def _check(self) -> None:
        pass


PLANTED: list[Callable[[Grammar], Engine[str]]] = [
    KeepsLengthRows,
    FreesTwice,
    StampsWithASum,
    KeepsStates,
    KeepsResults,
]


@pytest.mark.parametrize("grammar", [AMQP, MQTT], ids=lambda grammar: grammar.name)
@pytest.mark.parametrize("planted", PLANTED)
def test_the_machine_finds_a_planted_bug(planted: Callable[[Grammar], Engine[str]], grammar: Grammar) -> None:
    quick = settings(
        max_examples=1_000,
        stateful_step_count=30,
        derandomize=True,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        phases=[Phase.generate],
    )
    with pytest.raises((AssertionError, KeyError)):  # a wrong result, or an error
        run_state_machine_as_test(
            machine(grammar, lambda g: {"naive": Naive(g), "planted": planted(g)}), settings=quick
        )
    run_state_machine_as_test(
        machine(grammar, lambda g: {"naive": Naive(g)}), settings=settings(quick, max_examples=10)
    )
