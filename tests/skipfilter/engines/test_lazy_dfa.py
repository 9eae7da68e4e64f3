"""The states of the lazy DFA: when they are created, shared, dropped and computed
again.
"""

from __future__ import annotations

from skipfilter.engines import LazyDfa
from skipfilter.topics.words import AMQP, MQTT


def made(engine: LazyDfa[str]) -> int:
    return len(engine._states) + len(engine._beginnings)


def filled(engine: LazyDfa[str], *patterns: str) -> LazyDfa[str]:
    for pattern in patterns:
        engine.subscribe(pattern, pattern)
    return engine


def test_the_states_of_the_picture() -> None:
    engine = filled(LazyDfa(AMQP), "a.b", "a.*", "#.b")
    assert made(engine) == 0
    assert engine.lookup("a.b") == {"a.b", "a.*", "#.b"}
    assert made(engine) == 3
    assert engine.lookup("a.z") == {"a.*"}
    assert made(engine) == 4
    assert engine.lookup("a.z") == {"a.*"}
    assert engine.lookup("a.y") == {"a.*"}
    assert made(engine) == 4


def test_words_outside_all_patterns_make_no_states() -> None:
    engine = filled(LazyDfa(AMQP), "a.#", "*.b")
    engine.lookup("z.z.z")
    states = made(engine)
    for number in range(100):
        assert engine.lookup(f"{number}.{number}.{number}") == set()
    assert made(engine) == states
    assert not any(state.next for state in (*engine._beginnings.values(), *engine._states.values()))


def test_a_known_transition_is_not_computed_again() -> None:
    engine = filled(LazyDfa(AMQP), "a.b", "*.c", "#.d")
    engine.lookup("a.b")
    engine._follow = None  # type: ignore[assignment, method-assign]
    assert engine.lookup("a.b") == {"a.b"}
    assert engine.matches("a.b")


def test_a_result_is_computed_once_between_two_changes() -> None:
    engine = filled(LazyDfa(AMQP), "a")
    engine.lookup("a")
    (state,) = engine._states.values()
    before = state.result
    engine.lookup("a")
    assert state.result is before
    engine.subscribe("a", "x")
    assert engine.lookup("a") == {"a", "x"}


def test_subscribers_of_a_known_pattern_come_and_go_without_new_states() -> None:
    engine = filled(LazyDfa(AMQP), "a.b", "#.b")
    engine.lookup("a.b")
    before = set(engine._states.values())
    handle = engine.subscribe("a.b", "x")
    assert engine.lookup("a.b") == {"a.b", "#.b", "x"}
    engine.unsubscribe(handle)
    assert engine.lookup("a.b") == {"a.b", "#.b"}
    handle = engine.subscribe("a", "y")  # its node is there already
    assert engine.lookup("a") == {"y"}
    engine.unsubscribe(handle)
    assert engine.lookup("a") == set()
    assert before <= set(engine._states.values())


def test_a_new_node_and_a_pruned_one_drop_the_states() -> None:
    engine = filled(LazyDfa(AMQP), "a.b")
    engine.lookup("a.b")
    before = set(engine._states.values())
    handle = engine.subscribe("a.c", "x")
    assert engine.lookup("a.c") == {"x"}
    assert not before & set(engine._states.values())
    before = set(engine._states.values())
    engine.unsubscribe(handle)
    assert engine.lookup("a.c") == set()
    assert not before & set(engine._states.values())


def test_the_budget_is_kept_and_results_stay_correct() -> None:
    engine = filled(LazyDfa(AMQP, budget=3), "#.a", "#.b.#", "a.*.c.#", "b")
    fresh = filled(LazyDfa(AMQP), "#.a", "#.b.#", "a.*.c.#", "b")
    for number in range(3**5):
        topic = ".".join("abc"[number // 3**postings % 3] for postings in range(5))
        assert engine.lookup(topic) == fresh.lookup(topic)
        assert engine.matches(topic) == fresh.matches(topic)
        assert len(engine._states) <= 3
        engine._check()
    assert len(fresh._states) > 3


def test_hidden_topics_have_their_own_first_state_and_share_the_rest() -> None:
    engine = filled(LazyDfa(MQTT), "#", "+/b", "$a/b", "a/b")
    assert engine.lookup("$a/b") == {"$a/b"}
    assert engine.lookup("a/b") == {"#", "+/b", "a/b"}
    assert engine.lookup("$a/b") == {"$a/b"}
    assert set(engine._beginnings) == {False, True}
    assert engine.matches("$a/b")
    assert not engine.matches("$b/b")


def test_matches_stops_at_a_tail() -> None:
    engine = filled(LazyDfa(AMQP), "a.#", "a.b.c.d")
    assert engine.matches("a.b.c.d")
    assert made(engine) == 2
