"""Control: carries out commands on one node, and answers who was met (`hub.control`).

    a program, an operator ─► kick, revoke, lift ─► history ─► Outcome
    history ─► ledger ─► carry_out ─► streams are aborted ─► answer

`carry_out` runs before each dispatch, and when a command is given here.

Belongs here: what a command does on this node, and what happens while the history is
away.  Does not belong here: who may give commands, and the rule whom they mean
(`control.commands`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter, defaultdict
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import structlog
from cachetools import LRUCache

from hub import turns
from hub.control.commands import APPLICATION, Command, Numbered, target_of
from hub.control.ledger import MAX_COMMANDS
from hub.delivery.seat import Ending
from hub.errors import HistoryUnavailable, Interrupted, InvalidToken, ListFull
from hub.history import base
from hub.node.connections import PAGE, moment

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
    from random import Random
    from typing import Unpack

    from hub.auth.grant import CompiledGrant
    from hub.control.commands import Action, By, Inquiry, Named, Taken, Target
    from hub.delivery.audience import Audience
    from hub.delivery.seat import Seat
    from hub.delivery.subscriber import Subscriber
    from hub.history.base import History
    from hub.settings import Settings

log = structlog.stdlib.get_logger("hub")

T = TypeVar("T")

UNREADABLE: Final = "the list of commands cannot be read"
ANSWER_SECONDS: Final = 2.0
"""Seconds that a command waits for the answers of the other processes."""
CALL_SECONDS: Final = 4.0
"""Seconds that a process waits for the others after the history was away: longer than
their longest pause between two attempts to reach it."""
MAX_DONE, MAX_ANSWERS = 1_000, 100
"""Commands, and questions, whose results are kept for those who asked."""
MAX_ASKING: Final = 4
"""Questions that are asked here at the same time; further ones wait."""
ALONE_SECONDS: Final = 0.5
"""Seconds after which a process ends its own streams if the history does not answer."""
FIRST_LOOK, LAST_LOOK = 0.005, 0.1
"""Seconds between two looks for answers, which double from the first to the last.  They
are few, and a wake-up for each answer would wake all processes."""


class Outcome(NamedTuple):
    """What a command has done."""

    ended: Mapping[str, int]
    """The number of streams that it has ended, by issuer: also `classic` for classic
    tokens, `application` for grants of the application, and `anonymous`."""
    silent: Sequence[str]
    """The names of the processes that have not answered.  They carry it out before they
    dispatch anything that is published after it was stored."""
    is_stored: bool
    """Whether the history has it.  If not, the history is away, or full; this process
    has carried the command out, and stores it when the history is back."""

    @property
    def not_revoked(self) -> int:
        """The number of ended streams whose grant only the application can refuse."""
        return self.ended.get(APPLICATION, 0)


class ConnectionPage(NamedTuple):
    """Some of the connections of all processes."""

    connections: Sequence[Mapping[str, Any]]
    """One for each: `subscriber`, `process`, `issuer`, `subject`, `token_id`, `key_id`,
    `address`, `since`, `expires`, the number of its `matchers` and `grants` with the
    first of each, its `state`, and how many entries of the history it is `behind`."""
    next: str | None
    """The id after which the next page begins; None if there is none."""
    silent: Sequence[str]
    """The names of the processes that have not answered."""


class Control:
    """The commands of one node.

    `answers` has the functions that answer questions here, with a value for JSON.
    `trusts` returns whether the key of a grant still counts.  `wall_clock` returns
    seconds since the epoch.
    """

    def __init__(
        self,
        settings: Settings,
        history: History,
        audience: Audience,
        *,
        answers: Mapping[Action, Callable[[Target | None, str], Coroutine[Any, Any, Any]]],
        trusts: Callable[[CompiledGrant], bool],
        wall_clock: Callable[[], float],
        random: Random,
    ) -> None:
        self._settings = settings
        self._history = history
        self._ledger = history.ledger
        self._audience = audience
        self._answers_of = answers
        self._trusts = trusts
        self._wall_clock = wall_clock
        self._random = random
        self._turn = asyncio.Lock()  # held while commands are carried out
        # What the newest commands have done here, by number: how many streams have
        # ended, by issuer; or the answer to a question, which may take a while.
        self._done: LRUCache[int, Counter[str]] = LRUCache(MAX_DONE)
        self._answering: LRUCache[int, asyncio.Task[Any]] = LRUCache(MAX_ANSWERS)
        self._asking = asyncio.Semaphore(MAX_ASKING)
        self._local = 0  # the last number of a command that the history does not have; they descend
        self.pending: list[Command] = []
        """Those that the history does not have yet."""
        self._writing = asyncio.Lock()  # held while they are written
        self._tasks: set[asyncio.Task[Any]] = set()

    # -- the questions of requests on their way

    @property
    def heard(self) -> int:
        """A mark for the commands that are known by now."""
        return self._ledger.heard

    def require_current(self) -> None:
        """Raise `HistoryUnavailable` if the list of commands cannot be read."""
        if not self._ledger.is_current:
            raise HistoryUnavailable(UNREADABLE)

    def ending(self, subscriber: Subscriber) -> Ending | None:
        """Return why a subscriber must end when it gets its seat (R83); None if it need
        not.

        A command may have met it since its request came, or its key was withdrawn.
        """
        heard, grant = subscriber.heard, subscriber.grant
        if heard is not None and self._ledger.ended_since(heard, subscriber.id, grant.identity):
            return Ending.KICKED
        # Its token may have been verified while the list could not be read.
        if self._ledger.revoked and self._ledger.revoking(grant.identity) is not None:
            return Ending.KICKED
        return None if self._trusts(grant) else Ending.KEY_WITHDRAWN

    def require_good(self, grant: CompiledGrant, heard: int) -> int:
        """Raise an error unless a grant, which was given after the mark `heard`, still
        counts; return the number of the newest command (R83).

        Raises `HistoryUnavailable`, `InvalidToken` for a token that is revoked, and
        `Interrupted` if a command has met a grant of the application, which must be
        asked again.
        """
        ledger, identity = self._ledger, grant.identity
        if not ledger.is_current:
            raise HistoryUnavailable(UNREADABLE)
        if ledger.revoked and ledger.revoking(identity) is not None:
            raise InvalidToken("it is revoked")
        if ledger.heard != heard and identity.issuer == APPLICATION and ledger.ended_since(heard, "", identity):
            raise Interrupted
        return ledger.number

    # -- commands

    async def give(self, action: Action, **named: Unpack[Named]) -> Outcome:
        """Give a command to all processes, and return what it has done.

        Exactly one of `subject`, `subscriber`, `token_id` and `key_id` must be given.
        Returns when the command is carried out on all processes that are alive, or
        after ANSWER_SECONDS.

        Raises `InvalidRequest`, `ListFull`, and `HistoryUnavailable` if the history is
        away, and too many commands wait for it.
        """
        target = target_of(**named)
        settings = self._settings
        before = self._wall_clock() + settings.leeway
        until = before + settings.leeway + settings.max_token_life if settings.max_token_life else None
        command = Command(action, target, before, until if action == "revoke" else None)
        storing = asyncio.ensure_future(self._store(command))
        try:
            await asyncio.wait([storing], timeout=ALONE_SECONDS)
            early = Counter[str]() if storing.done() else await self._end_here(command)  # if the history hangs
            taken = await storing
            await self._carry_out_due()
            outcome = await self._gathered(taken, early)
        except HistoryUnavailable as error:
            outcome = await self._alone(command, early, error)
        finally:
            storing.cancel()
        log.info(
            f"command: {action}",
            by=target.by,
            issuer=target.issuer,
            ended=sum(outcome.ended.values()),
            silent=outcome.silent,
            **{target.by: target.value},
        )
        return outcome

    async def _store(self, command: Command) -> Taken:
        await self.write_pending()
        return await self._history.command(command)

    async def _end_here(self, command: Command) -> Counter[str]:
        """Carry a command out before the history has it; return what it has ended."""
        self._local -= 1
        number = self._local
        self._ledger.add(Numbered(number, command))
        await self._carry_out_due()
        return self._done.pop(number, Counter())

    async def _gathered(self, taken: Taken, early: Counter[str]) -> Outcome:
        """Wait for the answers of the other processes."""
        answers = await self._all_answers(taken)
        ended = early + self._done.get(taken.number, Counter())
        for answer in answers.values():
            ended += Counter(json.loads(answer))
        return Outcome(ended, sorted(set(taken.others) - answers.keys()), True)

    async def connected(self, *, after: str = "", **named: Unpack[Named]) -> ConnectionPage:
        """Return the first connections of all processes after a subscriber's id.

        If one of `subject`, `subscriber`, `token_id` and `key_id` is given, only those
        that it names.  Waits for the answers as `give` does.

        Raises `InvalidRequest`, and `HistoryUnavailable` if the history is away.
        """
        pages, silent = await self.ask("list", after, **named)
        page = sorted(chain(*pages), key=lambda row: str(row["subscriber"]))[:PAGE]
        return ConnectionPage(page, str(page[-1]["subscriber"]) if len(page) == PAGE else None, silent)

    async def ask(self, action: Inquiry, question: str, **named: Unpack[Named]) -> tuple[list[Any], list[str]]:
        """Ask all processes a question; return their answers, and who was silent.

        If one of `subject`, `subscriber`, `token_id` and `key_id` is given, it is about
        those that it names.  Waits for the answers as `give` does.  Raises as
        `connected` does.
        """
        target = target_of(**named) if any(value is not None for value in named.values()) else None
        async with self._asking:
            taken = await self._history.command(Command(action, target, question=question))
            await self._carry_out_due()
            own = self._answering.get(taken.number)
            waiting = [asyncio.wait([own], timeout=ANSWER_SECONDS)] if own is not None else []
            answers, *_ = await asyncio.gather(self._all_answers(taken), *waiting)
        found, silent = [json.loads(answer) for answer in answers.values()], set(taken.others) - answers.keys()
        if own is not None and own.done():
            found.insert(0, own.result())
        else:
            silent.add(self._history.node)
        return found, sorted(silent)

    def revocations(self) -> list[dict[str, Any]]:
        """Return the revocations in force, the oldest first.

        Each has a `subject` or a `token_id`, an `issuer` (None for all), `before`, the
        latest `iat` that it refuses, and `until`, when it ends, or None.  Raises
        `HistoryUnavailable`.
        """
        self.require_current()
        return [
            {
                target.by: target.value,
                "issuer": target.issuer,
                "before": moment(command.before),
                "until": None if command.until is None else moment(command.until),
            }
            for target, command in self._ledger.revoked.items()
        ]

    async def _all_answers(self, taken: Taken) -> dict[str, str]:
        """Wait for the answers of the other processes; return them by their names."""
        answers: dict[str, str] = {}
        with contextlib.suppress(TimeoutError, HistoryUnavailable):
            async with asyncio.timeout(ANSWER_SECONDS):
                async for answers in self._answers(taken.number, taken.others):  # noqa: B007
                    pass
        return {node: answer for node, answer in answers.items() if node != self._history.node}

    async def _answers(self, number: int, others: Iterable[str]) -> AsyncIterator[dict[str, str]]:
        """Yield the answers to a command so far, until all others have answered."""
        answers: dict[str, str] = {}
        pause = FIRST_LOOK
        while not answers.keys() >= set(others):
            await asyncio.sleep(pause)
            pause = min(2 * pause, LAST_LOOK)
            answers = await self._history.answers(number)
            yield answers

    async def _alone(self, command: Command, early: Counter[str], error: HistoryUnavailable) -> Outcome:
        """Carry a command out here, and store it when the history is back."""
        ledger = self._ledger
        if len(self.pending) >= MAX_COMMANDS:
            raise error
        if not ledger.has_room(command, self._settings.max_revocations):
            raise ListFull(self._settings.max_revocations)
        log.error("the history is away, so only this process knows a command", reason=error.reason)
        ledger.note(command)
        self.pending.append(command)
        if len(self.pending) == 1:
            self._begin(self._write_later())
        ended = early + await self._end_here(command)
        return Outcome(ended, sorted(ledger.others), False)

    async def _write_later(self) -> None:
        while self.pending:
            await asyncio.sleep(self._random.uniform(*base.RETRY))
            with contextlib.suppress(HistoryUnavailable):
                await self.write_pending()

    async def write_pending(self) -> None:
        """Store the commands that only this process knows, in their order.

        Must be called before any update is appended.  Raises `HistoryUnavailable`.
        """
        if not self.pending:
            return
        async with self._writing:
            while self.pending:
                try:
                    await self._history.command(self.pending[0])
                except ListFull as error:
                    log.error("a revocation could not be stored, and holds on this process only", reason=str(error))
                del self.pending[0]

    # -- carrying out

    async def carry_out(self) -> None:
        """Abort the streams that the commands which are due have met.

        Returns when all commands are carried out that were known at the call.  Raises
        `HistoryUnavailable` if the history was away, and is so again.
        """
        await self._carry_out_due()
        if self._ledger.was_lost:
            await self._call_others()

    async def _call_others(self) -> None:
        """Wait until those that were alive before have stored what they alone know, and
        carry it out.

        Does nothing while the history is away.
        """
        ledger = self._ledger
        if not ledger.is_current:
            return
        others = ledger.lost_others
        await self.write_pending()
        ledger.was_lost = False
        try:
            if others:
                taken = await self._history.command(Command("call", None))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(CALL_SECONDS):
                        async for _ in self._answers(taken.number, others):
                            await self._history.hear()  # the others call, too
                            await self._carry_out_due()
                await self._history.hear()
        except BaseException:
            ledger.was_lost, ledger.is_settled = True, False
            raise
        await self._carry_out_due()

    async def _carry_out_due(self) -> None:
        ledger = self._ledger
        async with self._turn:
            while ledger.is_due:
                all_of_them, ledger.has_missed = ledger.has_missed, False
                due = list(ledger.due)
                try:
                    done = await self._end_all() if all_of_them else await self._end(due)
                except asyncio.CancelledError:
                    ledger.has_missed |= all_of_them  # the commands are still due
                    raise
                except BaseException:
                    ledger.miss()  # some streams that were met go on
                    raise
                for number, command in due:
                    ledger.due.popleft()
                    if (answer := self._answers_of.get(command.action)) is not None:
                        self._answering[number] = asking = self._begin(answer(command.target, command.question))
                        self._begin(self._answer_later(number, asking))
                        continue
                    self._done[number] = done[number]
                    if number > 0:
                        self._begin(self._answer(number, json.dumps(done[number])))
            ledger.is_settled = not ledger.was_lost

    async def _end(self, due: Iterable[Numbered]) -> defaultdict[int, Counter[str]]:
        """Abort the streams that are met; return how many, by command and issuer."""
        by_target: defaultdict[tuple[By, str], list[Numbered]] = defaultdict(list)
        for numbered in due:
            command = numbered.command
            if command.target is not None and command.action in ("kick", "revoke"):
                by_target[command.target.by, command.target.value].append(numbered)
        ended: defaultdict[int, Counter[str]] = defaultdict(Counter)
        if not by_target:
            return ended
        kinds = sorted({by for by, _ in by_target})
        endings = turns.Portion(turns.ENDED_STREAMS)
        async for seats in turns.in_turns(self._audience, turns.ASKED_STREAMS):
            for seat in seats:
                for by in kinds:
                    commands = by_target.get((by, _value(seat, by) or ""), ())
                    if (number := _first_to_end(seat, commands)) is None:
                        continue
                    if endings.is_over():
                        await endings.pause()
                    if seat.close(Ending.KICKED):
                        ended[number][seat.subscriber.grant.identity.issuer] += 1
                    break
        return ended

    async def _end_all(self) -> defaultdict[int, Counter[str]]:
        """Abort all streams: each may be met by a command that is not known."""
        log.error("commands were missed, so all streams end", streams=len(self._audience))
        async for seats in turns.in_turns(self._audience, turns.ENDED_STREAMS):
            for seat in seats:
                seat.close(Ending.KICKED)
        return defaultdict(Counter)

    async def _answer_later(self, number: int, answering: asyncio.Task[Any]) -> None:
        """Tell the asker the answer to a question, unless it cannot be found."""
        try:
            answer = await answering
        except Exception as error:
            log.warning("a question cannot be answered", reason=repr(error))
        else:
            await self._answer(number, json.dumps(answer))

    async def _answer(self, number: int, text: str) -> None:
        """Tell the asker what a command has done here.

        First stores what only this process knows, for which a `call` asks.
        """
        with contextlib.suppress(HistoryUnavailable):
            await self.write_pending()
            await self._history.answer(number, text)

    def _begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def aclose(self) -> None:
        """Store what only this process knows, if that is possible at once."""
        if self.pending:
            with contextlib.suppress(HistoryUnavailable):
                await self.write_pending()
            for command in self.pending:
                log.error("a command was lost: the history is away", action=command.action)
        for task in (tasks := list(self._tasks)):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _value(seat: Seat, by: By) -> str | None:
    """Return what a target names a seat by."""
    subscriber = seat.subscriber
    value: str | None = subscriber.id if by == "subscriber" else getattr(subscriber.grant.identity, by)
    return value


def _first_to_end(seat: Seat, commands: Iterable[Numbered]) -> int | None:
    """Return the number of the first command that ends a seat, or None."""
    subscriber = seat.subscriber
    return next((number for number, one in commands if one.ends(subscriber.id, subscriber.grant.identity)), None)
