"""The list of commands of every history: its order beside the log, and its bounds."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hub.control import ledger
from hub.control.commands import Command, Identity, Target
from hub.errors import ListFull, Outdated
from hub.history.sqlite.history import SqliteHistory
from tests.hub.history.contract import KINDS, SHARED, everything, ids_of, named, nodes
from tests.waiting import HANG

if TYPE_CHECKING:
    from collections.abc import Callable

    from hub.history.base import History

pytestmark = pytest.mark.anyio


def kick(subject: str) -> Command:
    return Command("kick", Target("subject", subject))


def revoke(subject: str, *, before: float = 100.0, until: float | None = None) -> Command:
    return Command("revoke", Target("subject", subject), before, until)


def token(subject: str, issued: float = 0.0) -> Identity:
    return Identity("https://issuer", subject, issued=issued)


def due(node: History) -> list[str]:
    """Return the subjects of the commands that are due, which are then done."""
    found = [command.target.value for _, command in node.ledger.due if command.target]
    node.ledger.due.clear()
    return found


def revoked(node: History) -> set[str]:
    """Return the subjects whose tokens are revoked."""
    return {command.target.value for command in node.ledger.revoked.values() if command.target}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_command_is_known_to_its_own_node_at_once(kind: str, new_url: Callable[[str], str]) -> None:
    async with nodes(new_url(kind)) as (node,):
        await node.hear()
        await node.append(named("a", "b"))
        first, second = await node.command(kick("alice")), await node.command(revoke("bob"))
        assert due(node) == ["alice", "bob"]
        assert (first.place, second.place, first.others) == (2, 2, [])
        assert first.number < second.number == node.ledger.number
        assert node.ledger.revoking(token("bob", 100.0)) == revoke("bob")
        assert node.ledger.revoking(token("bob", 100.5)) is None
        assert node.ledger.revoking(token("alice")) is None
        # Nothing of this is an entry.
        assert ids_of(await everything(node)) == ["a", "b"]
        stats = await node.stats()
        assert (stats.updates, stats.presence_updates, await node.end()) == (2, 0, 2)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_follower_yields_an_empty_page_for_a_command(kind: str, new_url: Callable[[str], str]) -> None:
    shared = kind in SHARED
    async with nodes(new_url(kind), 2 if shared else 1) as made, asyncio.timeout(HANG):
        node, asked = made[0], made[-1]
        await node.hear()
        pages = node.follow(await node.end())
        waiting = asyncio.ensure_future(anext(pages))
        for name in ("alice", "bob"):
            await asyncio.sleep(0)
            await asked.command(kick(name))
            assert await waiting == []
            assert due(node) == [name]
            waiting = asyncio.ensure_future(anext(pages))
        await asked.append(named("a"))
        assert ids_of(await waiting) == ["a"]
        assert due(node) == []
        await pages.aclose()  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", KINDS)
def test_r81_no_entry_comes_before_the_commands_that_were_taken_before_it(
    kind: str, new_url: Callable[[str], str], anyio_backend: Any
) -> None:
    step = st.tuples(st.integers(0, 1), st.sampled_from(["append", "command", "look"]))

    @settings(max_examples=60 if kind == "memory" else 25, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(step, min_size=1, max_size=12))
    def check(steps: list[tuple[int, str]]) -> None:
        asyncio.run(run(steps))

    async def run(steps: list[tuple[int, str]]) -> None:
        shared = kind in SHARED
        async with nodes(new_url(kind), 2 if shared else 1) as made, asyncio.timeout(HANG):
            for node in made:
                await node.hear()
            followers = [node.follow(0) for node in made]
            known: list[list[str]] = [[] for _ in made]
            seen: list[list[str]] = [[] for _ in made]
            before: dict[str, list[str]] = {}  # the commands that came before each entry
            commands: list[str] = []

            async def look(which: int) -> None:
                """Take the next page of a node: all that it needs to know, it knows."""
                page = await anext(followers[which])
                known[which] += due(made[which])
                for entry in page:
                    seen[which].append(entry.update.id)
                    assert known[which][: len(before[entry.update.id])] == before[entry.update.id]

            for number, (which, what) in enumerate(steps):
                which %= len(made)
                name = str(number)
                if what == "append":
                    before[name] = list(commands)
                    await made[which].append(named(name))
                elif what == "command":
                    await made[which].command(kick(name))
                    commands.append(name)
                elif len(seen[which]) < len(before):
                    await look(which)
            for which in range(len(made)):
                while len(seen[which]) < len(before):
                    await look(which)
                assert seen[which] == list(before)
                await followers[which].aclose()  # type: ignore[attr-defined]

    check()


@pytest.mark.parametrize("kind", KINDS)
async def test_an_append_asks_for_commands_in_its_own_step(kind: str, new_url: Callable[[str], str]) -> None:
    async with nodes(new_url(kind), 2 if kind in SHARED else 1) as made:
        node, asked = made[0], made[-1]
        await node.hear()
        known = node.ledger.number
        await node.append(named("a"), known=known)
        await asked.command(revoke("alice"))
        with pytest.raises(Outdated):
            await node.append(named("b"), known=known)
        assert node.ledger.revoking(token("alice"))  # learned by the refused append
        await node.append(named("c"), known=node.ledger.number)
        await node.append(named("d"))  # the program itself asks nothing
        assert ids_of(await everything(node)) == ["a", "c", "d"]


@pytest.mark.parametrize("kind", SHARED)
async def test_an_append_on_its_way_is_overtaken_by_a_command(kind: str, new_url: Callable[[str], str]) -> None:
    async with nodes(new_url(kind), 2) as (node, asked):
        await node.hear()
        await asked.hear()
        for n in range(20):
            known = node.ledger.number
            appending = asyncio.ensure_future(node.append(named(f"{n}"), known=known))
            taken, outcome = await asyncio.gather(asked.command(kick("alice")), appending, return_exceptions=True)
            assert not isinstance(taken, BaseException)
            # Either the append came first, or it appended nothing.
            found = await node.find(str(n))
            assert isinstance(outcome, Outdated) == (found is None)
            assert found is None or found <= taken.place


@pytest.mark.parametrize("kind", SHARED)
async def test_a_late_process_reads_what_is_in_force(kind: str, new_url: Callable[[str], str]) -> None:
    url = new_url(kind)
    async with nodes(url) as (first,):
        await first.command(revoke("alice"))
        await first.command(revoke("bob"))
        await first.command(Command("lift", Target("subject", "alice")))
        await first.command(kick("carol"))
    async with nodes(url) as (late,):
        assert not late.ledger.is_current
        await late.hear()
        assert late.ledger.is_current
        assert [*late.ledger.revoked.values()] == [revoke("bob")]
        assert (due(late), late.ledger.has_missed) == ([], False)  # it has no stream yet


@pytest.mark.parametrize("kind", SHARED)
async def test_a_process_that_was_away_for_too_long_knows_that_it_missed_commands(
    kind: str, new_url: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"hub.history.{kind}.{'transaction' if kind == 'sqlite' else 'history'}.MAX_COMMANDS", 6)
    async with nodes(new_url(kind), 2) as (here, away):
        await away.hear()
        mark = away.ledger.heard
        for n in range(5):
            await here.command(kick(f"a{n}"))
        await away.hear()
        assert due(away) == ["a0", "a1", "a2", "a3", "a4"]
        assert not away.ledger.has_missed
        for n in range(6):
            await here.command(revoke(f"b{n}"))
        await here.command(Command("lift", Target("subject", "b0")))
        await away.hear()
        assert away.ledger.has_missed
        assert revoked(away) == {f"b{n}" for n in range(1, 6)}
        assert away.ledger.ended_since(mark, "urn:1", token("dave"))  # perhaps it does
        away.ledger.has_missed = False
        await here.command(kick("c"))
        await away.hear()
        assert (due(away), away.ledger.has_missed) == (["c"], False)


@pytest.mark.parametrize("kind", SHARED)
async def test_an_old_command_is_dropped_but_never_the_newest(
    kind: str, new_url: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"hub.history.{kind}.{'transaction' if kind == 'sqlite' else 'history'}.MAX_AGE", 0)
    async with nodes(new_url(kind), 2) as (here, away):
        await away.hear()
        for n in range(3):
            await here.command(kick(f"a{n}"))
            await asyncio.sleep(0.002)  # the age is in ms
        await away.hear()
        assert away.ledger.has_missed
        assert away.ledger.number == here.ledger.number


@pytest.mark.parametrize("kind", KINDS)
async def test_r86_a_full_list_refuses_the_next_revocation_and_drops_none(
    kind: str, new_url: Callable[[str], str]
) -> None:
    async with nodes(new_url(kind), revocations=2) as (node,):
        await node.hear()
        await node.command(revoke("alice"))
        await node.command(revoke("bob", until=150.0))
        number = node.ledger.number
        with pytest.raises(ListFull, match="2 revocations are in force"):
            await node.command(revoke("carol", before=150.0))
        assert node.ledger.number == number
        await node.command(revoke("alice", before=120.0))  # takes no more room
        await node.command(kick("carol"))  # needs none
        assert revoked(node) == {"alice", "bob"}
        # Bob's has ended: there is room.
        await node.command(revoke("carol", before=150.5))
        assert revoked(node) == {"alice", "carol"}
        await node.command(Command("lift", Target("subject", "alice")))
        await node.command(revoke("dave", before=151.0))
        assert revoked(node) == {"carol", "dave"}


@pytest.mark.parametrize("kind", SHARED)
async def test_a_command_that_is_heard_while_nobody_waits_wakes_the_follower(
    kind: str, new_url: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hub.history.redis.history.CHECK_SECONDS", 2 * HANG)
    async with nodes(new_url(kind), 2) as (one, other):
        following = other.follow(0)
        await one.append(named("a"))
        assert len(await asyncio.wait_for(anext(following), HANG)) == 1
        await one.command(kick("alice"))
        await other.hear()
        assert await asyncio.wait_for(anext(following), HANG) == []
        assert not other.ledger.was_lost  # it did not wait until the server was given up
        await following.aclose()  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", SHARED)
async def test_answers_come_to_the_node_that_asked(kind: str, new_url: Callable[[str], str]) -> None:
    async with nodes(new_url(kind), 3) as made:
        asked, one, other = made
        for node in made:
            await node.hear()
        taken = await asked.command(kick("alice"))
        assert set(taken.others) == {one.node, other.node}
        assert await asked.answers(taken.number) == {}
        await one.answer(taken.number, '{"é": 1}')
        later = await asked.command(kick("bob"))
        await other.answer(later.number, "{}")
        assert await asked.answers(taken.number) == {one.node: '{"é": 1}'}
        assert await asked.answers(later.number) == {other.node: "{}"}


async def test_a_command_that_cannot_be_read_counts_as_missed(new_url: Callable[[str], str]) -> None:
    async with nodes(new_url("sqlite")) as (node,):
        assert isinstance(node, SqliteHistory)
        await node.hear()
        await node.command(revoke("alice"))
        due(node)

        def of_a_later_version(writing: Any) -> None:
            writing._connection.execute("INSERT INTO command VALUES (?, ?)", (writing.newest + 1, '["freeze", 1]'))

        await node._commits.write(of_a_later_version)
        await node.hear()
        assert node.ledger.has_missed
        assert [*node.ledger.revoked.values()] == [revoke("alice")]
        node.ledger.has_missed = False
        await node._commits.write(of_a_later_version)
        await node.command(kick("carol"))  # learned in one step with it
        assert node.ledger.has_missed
        due(node)
        node.ledger.has_missed = False
        await node.command(kick("bob"))
        assert (due(node), node.ledger.has_missed) == (["bob"], False)


async def test_commands_survive_a_repair_and_a_backup(new_url: Callable[[str], str], tmp_path: Any) -> None:
    async with nodes(new_url("sqlite")) as (node,):
        assert isinstance(node, SqliteHistory)
        await node.append(named("a"))
        await node.hear()
        await node.command(revoke("alice"))
        due(node)
        await node.backup(str(tmp_path / "copy.db"))

        def damage() -> None:
            file = node._database.opened()
            node._database.repair(file, RuntimeError("damaged"))  # type: ignore[arg-type]

        await asyncio.to_thread(node._database.writer.call, damage)
        await node.command(kick("bob"))
        assert (due(node), node.ledger.has_missed) == (["bob"], False)
        assert [*node.ledger.revoked.values()] == [revoke("alice")]
    for name in ("copy.db", node.path):
        async with nodes(f"sqlite:///{tmp_path / name}") as (again,):
            await again.hear()
            assert [*again.ledger.revoked.values()] == [revoke("alice")]


def test_a_ledger_keeps_the_newest_commands_for_requests_on_their_way() -> None:
    own = ledger.Ledger(is_current=True)
    marks = []
    for n in range(ledger.MAX_RECENT + 5):
        marks.append(own.heard)
        own.note(kick(str(n)))
    assert own.ended_since(marks[5], "urn:1", token("5"))
    assert not own.ended_since(marks[6], "urn:1", token("5"))
    assert not own.ended_since(marks[5], "urn:1", token("4"))
    assert own.ended_since(marks[4], "urn:1", token("nobody"))  # unknown, so it counts
    assert not own.ended_since(own.heard, "urn:1", token("5"))
