"""Explaining: why did an update not arrive, or who got it?

    subject, id …      ─► all processes: the fates of these connections ─┐
    all                ─► all processes: how many, and some of each    ──┼─► Explained
    a URL and a token  ─► here: as if its stream began now             ──┘

The same parts decide as for a delivery: the rules of requests and tokens, the cursor,
and the audience.  Here, their answers only come together.

It shows what clients may not see, so it is for the program and its operator.

Belongs here: the question, and the words of the answer.  Does not belong here: any rule
of the protocol, and what one process knows (`hub.node.fates`).
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

from pyroaring import BitMap64

from hub.auth.grant import ANONYMOUS
from hub.auth.hints import grant_hint
from hub.control.commands import ANONYMOUS as NO_TOKEN
from hub.delivery.audience import Audience
from hub.errors import InvalidRequest, InvalidToken, KeysUnavailable, NotFound
from hub.history.base import EARLIEST
from hub.node.connections import moment
from hub.node.fates import Asked, Fate, fate_of, find_entry
from hub.protocol.data import require_topics
from hub.protocol.hints import subscribe_hints
from hub.protocol.requests import take_tokens
from hub.subscribing import Question
from skipfilter.text import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Unpack

    from hub.auth.authorizer import Authorizer
    from hub.auth.grant import CompiledGrant
    from hub.control.commands import Named
    from hub.history.base import Entry, History
    from hub.node.control import Control
    from hub.node.fates import Fates
    from hub.settings import Settings
    from hub.subscribing import Imagined, Subscribing
    from hub.turns import TimeSlices

_LOCAL: Final = "http://localhost:3000"
"""Where a hub is reached for which no setting says it."""
MAX_EXPLAINED_TOPICS: Final = 100
"""Topics of an update that is not published, at most."""


class Explained(NamedTuple):
    """The answer to a question about an update."""

    sentence: str
    """The answer in one sentence."""
    update: Mapping[str, Any]
    """The update: its `topics`, whether it is `private` and, if it is in the history,
    its `id` and when it was `published`."""
    connected: int
    """The number of open streams, on all processes."""
    fates: Mapping[str, int]
    """How many connections have which fate; see `hub.node.fates.Fate`."""
    subscribers: Sequence[Mapping[str, Any]]
    """Some of them, each with a `sentence`, its `fate` and what is known of it.  If the
    question named them, also with findings: what it `wants`, what it `may_read`, and
    `hints`."""
    similar: Sequence[str]
    """Subjects that are connected, if the one that was named is not."""
    silent: Sequence[str]
    """The names of the processes that have not answered."""


class Explaining:
    """The explanations of one node."""

    def __init__(
        self,
        settings: Settings,
        history: History,
        *,
        authorizer: Authorizer,
        subscribing: Subscribing,
        control: Control,
        fates: Fates,
        slices: TimeSlices,
    ) -> None:
        self._settings = settings
        self._history = history
        self._authorizer = authorizer
        self._subscribing = subscribing
        self._control = control
        self._fates = fates
        self._slices = slices

    async def explain(
        self,
        topics: Sequence[str] = (),
        *,
        private: bool = False,
        update: str | None = None,
        stream: str | None = None,
        token: str | None = None,
        grant: CompiledGrant | None = None,
        **named: Unpack[Named],
    ) -> Explained:
        """Return what became of the update with an id, or what would become of one.

        See `HubApplication.explain`.  Raises `InvalidRequest`, `NotFound` if the
        history does not have the update, and `HistoryUnavailable`.
        """
        asked, entry = await self._asked(topics, private, update)
        is_named = any(value is not None for value in named.values())
        if stream is not None:
            if is_named:
                raise InvalidRequest("give the URL of a stream, or name a subscriber, and not both")
            return await self._of_stream(asked, entry, stream, token, grant)
        if token is not None or grant is not None:
            raise InvalidRequest("a token needs the URL of a stream, which says what is subscribed to")
        question = asked if update is None else Asked(update, [], False)  # the others find its topics themselves
        answers, silent = await self._control.ask("explain", question.to_json(), **named)
        fates = Counter[str]()
        for answer in answers:
            fates.update(answer["fates"])
        rows = [{**row, "sentence": _sentence(row)} for answer in answers for row in answer["rows"]]
        connected = sum(answer["connected"] for answer in answers)
        similar = list(dict.fromkeys(one for answer in answers for one in answer["similar"]))
        if is_named:
            name, value = next((name, value) for name, value in named.items() if value is not None and name != "issuer")
            sentence = _of_named(
                f"{name.replace('_', ' ')} {shown(str(value))}",
                rows,
                fates,
                similar,
                ended=self._settings.remembered_connections > 0,
            )
        else:
            sentence = _of_all(fates, rows)
        return Explained(sentence, _about(asked, entry), connected, dict(fates), rows, similar, silent)

    async def _asked(self, topics: Sequence[str], private: bool, update: str | None) -> tuple[Asked, Entry | None]:
        """Return the question, and the entry that it is about."""
        if (update is None) == (not topics):
            raise InvalidRequest("give the topics of an update, or the id of one in the history, and not both")
        if update is None:
            require_topics(topics)
            if len(topics) > MAX_EXPLAINED_TOPICS:
                raise InvalidRequest(f"there are {len(topics)} topics; the limit is {MAX_EXPLAINED_TOPICS}")
            return Asked(None, list(topics), private), None
        if private:
            raise InvalidRequest("the update in the history says itself whether it is private")
        entry = await find_entry(self._history, update)
        if entry is None:
            raise NotFound(
                f"the history has no update with the id {shown(update)}: it was never published here, or it is "
                "forgotten; an event log may still have it"
            )
        return Asked(update, entry.update.topics, entry.update.private), entry

    # -- a stream that does not exist

    async def _of_stream(
        self, asked: Asked, entry: Entry | None, stream: str, token: str | None, grant: CompiledGrant | None
    ) -> Explained:
        """Return the answer for a stream that a client would begin now."""
        try:
            url = urlsplit(stream)
            query, tokens = take_tokens(url.query.encode("utf-8"))
        except ValueError:  # it may have a token, so no message and no log has it
            raise InvalidRequest("the stream is no URL") from None
        if token is None and tokens:
            token = tokens[0]
        question = Question(query, [])
        hints = subscribe_hints(question.query, b"", self._settings)
        row: dict[str, Any] = {"fate": None, "wants": [], "may_read": [], "hints": hints}
        refused = imagined = None
        if grant is None:
            origin = f"{url.scheme}://{url.netloc}" if url.scheme else (*self._settings.public_urls, _LOCAL)[0]
            grant, refused = await self._granted(token, origin, hints)
        if url.path and url.path != self._settings.path:
            refused = refused or f"its path {shown(url.path)} is not that of the hub, {shown(self._settings.path)}"
        try:
            imagined = await self._subscribing.imagine(grant, question)
        except InvalidRequest as error:
            refused = refused or f"the request breaks a rule: {error}"
        if refused is not None or imagined is None:
            row["sentence"] = f"The hub refuses the stream: {refused}."
        else:
            row |= await self._imagined(asked, entry, imagined, hints)
            row["sentence"] = _sentence(row)
        fates = {} if row["fate"] is None else {row["fate"]: 1}
        return Explained(row["sentence"], _about(asked, entry), 0, fates, [row], [], [])

    async def _imagined(
        self, asked: Asked, entry: Entry | None, imagined: Imagined, hints: list[str]
    ) -> dict[str, Any]:
        """Return the fate of an update at a stream that would begin now."""
        subscriber, start = imagined
        grant = subscriber.grant
        if start.loss is not None:
            place = "the oldest update" if subscriber.start == EARLIEST else "the next update"
            hints.append(f"the history does not have the cursor {shown(start.cursor)}: the stream begins with {place}")
        hint = grant_hint(grant, subscriber.subscribed)
        hints += [*grant.hints, *([] if hint is None else [hint])]
        audience = Audience(self._settings.url, max_alike=sys.maxsize)
        seat = audience.seat(subscriber)
        wanting, receiving = await self._fates.rule(audience, BitMap64([seat.id]), asked)
        position = None if entry is None else entry.position
        return {
            **await self._fates.reasons(subscriber, asked),
            "hints": hints,
            "issuer": grant.identity.issuer,
            "fate": fate_of(bool(receiving), bool(wanting), subscriber.start, math.inf, position),
        }

    async def _granted(self, token: str | None, origin: str, hints: list[str]) -> tuple[CompiledGrant, str | None]:
        """Return the grant of a token and, if the hub refuses it, why."""
        if not token:
            needed = "it has no token, and anonymous clients may not subscribe"
            return ANONYMOUS, None if self._settings.anonymous else needed
        resource = self._settings.resource_at(origin)
        try:
            return await self._authorizer.verify("subscribe", token, resource=resource), None
        except (InvalidToken, KeysUnavailable) as error:
            reasons = [error.reason]
            if isinstance(error, InvalidToken):
                try:
                    found = await self._authorizer.explain(token, resource=resource)
                except InvalidToken:
                    pass
                else:
                    reasons = list(dict.fromkeys([*reasons, *found.faults["subscribe"]]))
                    hints += found.hints
            return ANONYMOUS, f"its token is not valid: {'; '.join(reasons)}"


def _about(asked: Asked, entry: Entry | None) -> dict[str, Any]:
    """Return what an answer says of the update."""
    about: dict[str, Any] = {"topics": list(asked.topics), "private": asked.private}
    if entry is not None:
        about |= {"id": entry.update.id, "type": entry.update.type, "published": moment(entry.time / 1_000)}
    return about


# -- words


_FATES: Final = {
    Fate.RECEIVES: "would receive the update",
    Fate.RECEIVED: "was sent the update",
    Fate.WAITING: "was not sent the update yet",
    Fate.UNKNOWN: "has ended, and it is not known whether it was sent the update",
    Fate.LEFT: "ended before it was sent the update",
    Fate.LATE: "began after the update: its cursor was there already, or it had none",
    Fate.DENIED: "wants the update, and may not read it",
    Fate.UNWANTED: "does not want the update",
}
_COUNTS: Final = {
    Fate.RECEIVES: ("would receive it", "would receive it"),
    Fate.RECEIVED: ("was sent it", "were sent it"),
    Fate.WAITING: ("was not sent it yet", "were not sent it yet"),
    Fate.UNKNOWN: ("has ended, and perhaps was sent it", "have ended, and perhaps were sent it"),
    Fate.LEFT: ("ended before it was sent it", "ended before they were sent it"),
    Fate.LATE: ("began after it", "began after it"),
    Fate.DENIED: ("wants it, and may not read it", "want it, and may not read it"),
    Fate.UNWANTED: ("does not want it", "do not want it"),
}
"""What a number of streams did: of one, and of several."""


def _sentence(row: Mapping[str, Any], who: str = "It") -> str:
    """Return in one sentence what became of the update at one connection, and why."""
    fate = Fate(row["fate"])
    text = f"{who} {_FATES[fate]}{_reason(fate, row)}"
    return text if text.endswith("?") else f"{text}."


def _reason(fate: Fate, row: Mapping[str, Any]) -> str:
    """Return why, if the row has findings."""
    if fate is Fate.WAITING and not row["behind"]:
        return ", because its process has not dispatched it yet"
    if fate is Fate.WAITING:
        entries = f"{row['behind']} {'entry' if row['behind'] == 1 else 'entries'} of the history"
        return f", because its client has not read what comes before: {entries}"
    if "wants" not in row:
        return ""
    if fate is Fate.UNWANTED:
        return f": none of its matchers matches{_nearest(row['wants'])}"
    if fate is not Fate.DENIED:
        return ""
    if row["may_read"]:
        return f": the update is private, and no pattern of its grant matches{_nearest(row['may_read'])}"
    if row["issuer"] == NO_TOKEN:
        return ": the update is private, and it came without a token"
    hint = f"; {row['hints'][0]}" if row["hints"] else ""
    return f": the update is private, and its token or session grants no topic to read{hint}"


def _nearest(findings: Sequence[Mapping[str, Any]]) -> str:
    """Return what the first finding says."""
    if not findings:
        return ""
    type, pattern, topic, reason, near_miss = findings[0].values()
    if near_miss is None:
        return f"; {type} {shown(pattern)} does not match {shown(topic)}, because {reason}"
    return f"; {type} {shown(pattern)} would match {shown(topic)} {near_miss}"


def _of_named(
    who: str, rows: Sequence[Mapping[str, Any]], fates: Mapping[str, int], similar: Sequence[str], *, ended: bool
) -> str:
    """Return the answer about the connections that were named; `ended` is whether those
    that have ended could be among them.
    """
    count = sum(fates.values())
    if not count:
        known = "" if ended else ", and ended ones are not remembered"
        return f"The {who} has no stream{known}{f'; there is {shown(similar[0])}' if similar else ''}."
    if count == 1:
        return _sentence(rows[0], f"The stream of the {who}")
    if len(fates) == 1:
        return _sentence(rows[0], f"Each of the {count} streams of the {who}")
    return f"The {count} streams of the {who}: {_counted(fates)}."


def _of_all(fates: Mapping[str, int], rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the answer about all connections.

    If none wants the update, the rows are those that nearly do.
    """
    if not fates:
        return "There is no stream."
    getting = sum(fates.get(fate, 0) for fate in (Fate.RECEIVES, Fate.RECEIVED))
    near = next((_nearest(row["wants"]) for row in rows if row["fate"] == Fate.UNWANTED), "")
    return f"{'Streams' if getting else 'No stream gets it'}: {_counted(fates)}{near}."


def _counted(fates: Mapping[str, int]) -> str:
    return "; ".join(f"{count} {_COUNTS[fate][count > 1]}" for fate in Fate if (count := fates.get(fate)))
