"""A hub from outside, for a job: blocking, tried again for a while, and then given up on.

    follow(after)       ─► GET  Last-Event-ID, Prefer: wait=0 ─► events, until the hub says that these are all
    Publisher.publish   ─► POST as lines of JSON, or as one form an update where the hub takes no lines

A connection is lost, or refused for a moment: both go on from where they were, and an event that has been seen is not
asked for again.  Nothing here knows of Spark.

What is raised on purpose:

    PipelineError
    ├── BadInput           an option, a column or a row; also ValueError
    ├── Refused            by the hub, which says why
    │   └── NotTaken       of updates: one of them, where it says which
    ├── Unreachable        for as long as is tried
    ├── Silent             it is there, and what is to come does not come
    └── DataLoss           it no longer has what comes next

A token is read where a request is made and is in no message: what is kept is where it is to be found.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import httpx2

from hub.protocol.events import Blocks, parse_block
from skipfilter.spark.errors import BadInput, PipelineError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from hub.protocol.events import Block

EARLIEST: Final = "earliest"
"""The cursor before all that a hub has (N110)."""

AUTO: Final = "auto"
REQUIRED: Final = "required"
OFF: Final = "off"
"""Whether to ask for metadata, and to go on without."""

_CONNECT: Final = 10.0
_ANSWER: Final = 60.0
"""Seconds that an answer to a POST may take: a hub lets publishers wait while it is behind."""
_LONGEST: Final = 5.0
"""Seconds between two attempts, at most; the first is a twentieth of that."""
_PASSING: Final = (408, 429, 500, 502, 503, 504)
"""What may be otherwise in a moment."""
_MILLISECONDS: Final = re.compile("[0-9]{1,18}")
"""What fits into 64 bits."""
_DECODE: Final = json.JSONDecoder().raw_decode
_MEMBERS: Final[Callable[..., Any]] = itemgetter("topics", "private", "time", "position", "epoch")
"""Of the metadata, in the order of its fields."""
_YEAR_10000: Final = 253_402_300_800_000
"""In ms; a timestamp of Spark is before it."""
_JWT: Final = re.compile(r"(?i)^\s*(bearer\s+)?ey[\w-]+\.[\w-]+\.")


class Refused(PipelineError):
    """The hub does not do it; the message repeats what it says."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(f"the hub answers {status}: {said}")
        self.status = status
        self.said = said


class Unreachable(PipelineError):
    """The hub was tried as often as it may be."""


class Silent(PipelineError):
    """The hub is there, and says nothing."""


class DataLoss(PipelineError):
    """The hub no longer has what comes next."""


# -- how to be let in


@dataclass(frozen=True)
class Connection:
    """Where a hub is, and where the token for it is found; `retries` is how often in a row something may fail."""

    url: str
    token_env: str | None = None
    token_file: str | None = None
    retries: int = 8

    def headers(self) -> list[tuple[bytes, bytes]]:
        """What lets one in.  Read anew for each request, so that a file may be replaced while a query runs."""
        token = self._token()
        return [] if token is None else [(b"Authorization", f"Bearer {token}".encode("ascii"))]

    def _token(self) -> str | None:
        if self.token_env is not None:
            token, where = os.environ.get(self.token_env, ""), f"the environment variable {self.token_env}"
            hint = "; Spark does not take it to executors by itself: set it there, or use the option tokenFile"
        elif self.token_file is not None:
            where, hint = f"the file {self.token_file}", ""
            try:
                token = Path(self.token_file).read_text("utf-8")
            except OSError as error:
                raise BadInput(f"there is no token: {where} cannot be read: {error.strerror}") from None
        else:
            return None
        token = token.strip()
        if not token:
            raise BadInput(f"there is no token: {where} is empty or not set, on {_host()}{hint}")
        if not (token.isascii() and token.isprintable()):  # else the client would tell which character is wrong
            raise BadInput(f"there is no token: what is in {where} cannot be one")
        return token

    def open(self, *, read: float = _ANSWER) -> httpx2.Client:
        # It follows no redirect, which could take the token elsewhere.
        return httpx2.Client(timeout=httpx2.Timeout(_CONNECT, read=read), verify=_trusted())


@cache
def _trusted() -> ssl.SSLContext:
    """Whom to trust; reading that takes longer than a request."""
    return httpx2.create_ssl_context()


def _host() -> str:
    return os.uname().nodename


def parse_connection(options: Mapping[str, str]) -> Connection:
    """What the options url, tokenEnv, tokenFile and retries say.  Raises BadInput, which repeats no token."""
    if "token" in options:
        raise BadInput(
            "the option token is refused, as options are shown in plans and logs: name an environment variable "
            "with tokenEnv, or a file with tokenFile"
        )
    url = options.get("url", "")
    try:
        parsed = httpx2.URL(url)
    except httpx2.InvalidURL:
        parsed = httpx2.URL("")
    if parsed.userinfo or {name.lower() for name in parsed.params} & {"authorization", "access_token", "token"}:
        raise BadInput("the option url has a token in it: use tokenEnv or tokenFile")
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise BadInput("the option url is to be that of a hub, as https://hub.example/.well-known/mercure")
    env, file = options.get("tokenenv"), options.get("tokenfile")
    if env is not None and file is not None:
        raise BadInput("of the options tokenEnv and tokenFile, one can be given")
    if _JWT.match(env or "") or _JWT.match(file or ""):
        raise BadInput("tokenEnv is the name of an environment variable and tokenFile that of a file, not a token")
    return Connection(url, env, file, retries=whole_number(options, "retries", 8, least=0))


def require_known(options: Mapping[str, str], *known: str) -> None:
    """Raise BadInput for an option that there is not; those that Spark hands on for its own use are none of ours."""
    names = {"url", "tokenEnv", "tokenFile", "retries", *known}
    # `token` is told of where the connection is parsed.
    ours = {name.lower() for name in names} | {"token", "checkpointlocation", "queryname"}
    for name in options:
        if name.lower() not in ours:
            raise BadInput(f"there is no option {name!r}; there are {', '.join(sorted(names))}")


def whole_number(options: Mapping[str, str], name: str, default: int, *, least: int) -> int:
    text = options.get(name.lower(), str(default))
    if not (text.isascii() and text.isdigit()) or int(text) < least:
        raise BadInput(f"the option {name} is to be a whole number of at least {least}, not {text!r}")
    return int(text)


def seconds(options: Mapping[str, str], name: str, default: float) -> float:
    text = options.get(name.lower(), str(default))
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise BadInput(f"the option {name} is to be a number of seconds above 0, not {text!r}")
    return value


def flag(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = options.get(name.lower(), str(default)).lower()
    if text not in ("true", "false"):
        raise BadInput(f"the option {name} is true or false, not {text!r}")
    return text == "true"


# -- attempts


class _Attempts:
    """How often in a row something has failed, and how long to wait before the next time."""

    def __init__(self, url: str, most: int) -> None:
        self._url, self._most = url, most
        self._failed = 0

    def succeeded(self) -> None:
        self._failed = 0

    def failed(self, reason: str, after: float = 0.0) -> None:
        """Wait, at least `after` seconds.  Raises Unreachable where that was once too often."""
        self._failed += 1
        if self._failed > self._most:
            raise Unreachable(
                f"{self._url} has failed {self._failed} times in a row, the last time as follows: {reason}"
            )
        time.sleep(max(after, min(_LONGEST, _LONGEST / 20 * 2 ** (self._failed - 1))))


def _retry_after(response: httpx2.Response) -> float:
    text = response.headers.get("Retry-After", "")
    return min(60.0, float(text)) if text.isascii() and text.isdigit() else 0.0


def said(response: httpx2.Response) -> str:
    """What a refusal says: the detail of a problem document, or the text."""
    text = response.read().decode("utf-8", "replace")
    try:
        return str(json.loads(text)["detail"] or text)
    except (ValueError, LookupError, TypeError):
        return text.strip()[:500]


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


# -- events


Event: TypeAlias = tuple[str, str, str, str, str]
"""Id, type, data and retry of an event, as its frame has them, and its metadata; "" for a field that it has not."""


Metadata: TypeAlias = tuple[list[str], bool, int, int, str] | tuple[None, None, None, None, None]
"""Topics, private, time (ms since 1970), position and epoch of an event, as hub.http.replay tells them; or nothing."""


def parse_metadata(comment: str) -> Metadata:
    """Return the metadata in a comment.

    A comment that is not wholly as this hub writes it says nothing: what it left out could pass for public.
    """
    if comment:
        try:
            members, end = _DECODE(comment)
            found: Metadata
            found = topics, private, time, position, epoch = _MEMBERS(members)
            if (
                end == len(comment)
                and type(topics) is list
                and topics
                and type(private) is bool
                and type(time) is type(position) is int
                and 0 <= time < _YEAR_10000
                and 0 <= position < 2**63
            ):
                "".join([*topics, epoch]).encode("utf-8")  # which only texts without lone surrogates can be
                return found
        except (ValueError, LookupError, TypeError, RecursionError):
            pass
    return None, None, None, None, None


class EventParser:
    """Bytes of an event stream -> its events, however the bytes are cut (N26).

    A comment in JSON before an event is its metadata if the hub has said that it applied the preference `metadata`.

    All its mutable state, beside the end of what has no blank line yet: `last_event_id`, which stays until an event
    has another; and whether the hub has said that this is all.
    """

    def __init__(self, *, metadata: bool = False) -> None:
        self._blocks = Blocks()
        self._metadata = metadata
        self.last_event_id = ""
        self.is_complete = False

    def feed(self, data: bytes) -> list[Event]:
        return [event for block in self._blocks.feed(data) if (event := self._event(parse_block(block))) is not None]

    def _event(self, block: Block) -> Event | None:
        metadata = ""
        for comment in block.comments:
            if comment == "all":
                self.is_complete = True
            elif self._metadata and comment.startswith("{"):
                metadata = comment
        if block.id is not None:
            self.last_event_id = block.id
        if block.data is None:
            return None
        retry = block.retry if _MILLISECONDS.fullmatch(block.retry) else ""
        return self.last_event_id, block.type, block.data, retry, metadata


def follow(
    connection: Connection, wanted: Sequence[tuple[str, str]], after: str, *, idle: float, metadata: str = OFF
) -> Iterator[list[Event]]:
    """What matches any of the parameters `wanted` and comes after an event, as it arrives, without gap or repetition.

    With `metadata` AUTO or REQUIRED, events have it if the hub tells it; with REQUIRED, BadInput is raised if not.
    Ends where the hub says that this is all that there is now.  A hub that does not say so is listened to for `idle`
    seconds without an event, and then Silent is raised.  Raises DataLoss where the hub does not know the event, also
    one that was the last before the connection was lost.
    """
    attempts = _Attempts(connection.url, connection.retries)
    with connection.open(read=idle) as client:
        while True:
            begun = ends = False  # whether the hub has answered; and whether it says when that is all
            reason, wait = "the stream ended", 0.0
            try:
                with client.stream(
                    "GET", connection.url, params=list(wanted), headers=_cursor(after, metadata) + connection.headers()
                ) as response:
                    if response.status_code == 200:
                        told = metadata != OFF and _tells_metadata(response)
                        if metadata == REQUIRED and not told:
                            raise BadInput(_TELLS_NO_METADATA)
                        _require_known(response, after)
                        begun, ends = True, "wait=0" in response.headers.get("Preference-Applied", "")
                        parser, heard = EventParser(metadata=told), time.monotonic()
                        for chunk in response.iter_raw():
                            if events := parser.feed(chunk):
                                attempts.succeeded()
                                after = events[-1][0]
                                yield events
                                heard = time.monotonic()  # afterwards: who is slow to ask on has not waited for the hub
                            if parser.is_complete:
                                return
                            if not ends and time.monotonic() > heard + idle:  # a heartbeat is no event
                                raise Silent(f"no event has come for {idle:g} seconds")
                    elif response.status_code in _PASSING:
                        reason, wait = f"{response.status_code}: {said(response)}", _retry_after(response)
                    else:
                        raise Refused(response.status_code, said(response))
            except httpx2.ReadTimeout as error:
                if begun and not ends:
                    raise Silent(f"no event has come for {idle:g} seconds") from None
                reason = _told(error)
            except httpx2.TransportError as error:
                reason = _told(error)
            attempts.failed(reason, wait)


def _cursor(id: str, metadata: str = OFF) -> list[tuple[bytes, bytes]]:
    """Ids go out as UTF-8 (R77)."""
    preference = b"wait=0" if metadata == OFF else b"wait=0, metadata"
    return [(b"Last-Event-ID", id.encode("utf-8")), (b"Prefer", preference), (b"Accept-Encoding", b"identity")]


def _tells_metadata(response: httpx2.Response) -> bool:
    return "metadata" in response.headers.get("Preference-Applied", "")


_TELLS_NO_METADATA: Final = (
    "the hub does not tell the topics of its updates and whether they are private, as the option metadata=required "
    "demands: it is another hub than this project's, or an older one; with metadata=auto these columns are null"
)


def require_metadata(connection: Connection, wanted: Sequence[tuple[str, str]]) -> None:
    """Raise BadInput if the hub answers, and does not tell metadata.  What else is wrong, reading will report."""
    with contextlib.suppress(httpx2.TransportError), connection.open() as client:
        headers = _cursor(EARLIEST, REQUIRED) + connection.headers()
        response = client.head(connection.url, params=list(wanted), headers=headers)
        if response.status_code == 200 and not _tells_metadata(response):
            raise BadInput(_TELLS_NO_METADATA)


def _require_known(response: httpx2.Response, after: str) -> None:
    """Raise DataLoss where what answers the cursor is another one (N108): then something is missing in between."""
    names = (b"mercure-last-event-id", b"last-event-id")  # the second is the classic one (V52)
    cursors = [value for name in names for key, value in response.headers.raw if key.lower() == name]
    answered = cursors[0].decode("utf-8", "replace") if cursors else None
    if after not in (answered, EARLIEST):
        raise DataLoss(
            f"the hub no longer has the event {after!r}, so what came after it may be gone too: keep more history "
            "there (history_updates, history_bytes, history_age), read more often, or go on with what there is by "
            "failOnDataLoss=false"
        )


def knows(connection: Connection, wanted: Sequence[tuple[str, str]], id: str) -> bool:
    """Whether the hub still has the event with this id."""
    with connection.open() as client:
        response = client.head(connection.url, params=list(wanted), headers=_cursor(id) + connection.headers())
    if response.status_code != 200:
        raise Refused(response.status_code, "it does not say what it has")
    try:
        _require_known(response, id)
    except DataLoss:
        return False
    return True


# -- updates


class Publisher:
    """Publishes updates by one connection, many with a request where the hub takes that.

    All its mutable state: the connection; how often in a row it has failed; `most`, how many updates a request may
    have, which the hub may lower; and `takes_lines`, whether it takes more than one at all.
    """

    def __init__(self, connection: Connection, *, most: int) -> None:
        self._connection = connection
        self._client = connection.open()
        self._attempts = _Attempts(connection.url, connection.retries)
        self.most = most
        self.takes_lines = True

    def publish(self, lines: Sequence[bytes]) -> None:
        """Publish updates, each an object in JSON; in order, and those of a request all or none.

        Raises NotTaken with what the hub says of the first that it does not take, and its index.
        """
        done = 0
        while done < len(lines):
            part = lines[done : done + self.most]
            if not self.takes_lines:
                self._publish_one(part[0], done)
                done += 1
                continue
            response = self._post(b"\n".join(part), b"application/x-ndjson")
            if response.status_code == 200:
                done += len(part)
            elif response.status_code == 413 and len(part) > 1:
                self.most = len(part) // 2  # of this hub, fewer
            elif response.status_code in (400, 415) and _NUMBER.match(said(response)) is None:
                # Another hub looks for a form, and finds no topic in it.  Or it is ours, and the one line is bad.
                self._publish_one(part[0], done)
                self.takes_lines = False
                done += 1
            else:
                raise _not_taken(response, done)

    def _publish_one(self, line: bytes, index: int) -> None:
        response = self._post(as_form(json.loads(line)), b"application/x-www-form-urlencoded")
        if response.status_code != 200:
            raise _not_taken(response, index)

    def _post(self, body: bytes, type: bytes) -> httpx2.Response:
        while True:
            try:
                headers = [(b"Content-Type", type), *self._connection.headers()]
                response = self._client.post(self._connection.url, content=body, headers=headers)
            except httpx2.TransportError as error:
                reason, wait = _told(error), 0.0
            else:
                if response.status_code not in _PASSING:
                    self._attempts.succeeded()
                    return response
                reason, wait = f"{response.status_code}: {said(response)}", _retry_after(response)
            self._attempts.failed(reason, wait)

    def close(self) -> None:
        self._client.close()


class NotTaken(Refused):
    """The hub does not take an update; `index` says which one of those that were to be published."""

    def __init__(self, status: int, said: str, index: int | None) -> None:
        super().__init__(status, said)
        self.index = index
        """None where it is none of them in particular, as with a token that is not valid."""


_NUMBER: Final = re.compile(r"update (\d+): ")
"""How this hub begins what it says of one line among many."""


def _not_taken(response: httpx2.Response, before: int) -> NotTaken:
    text = said(response)
    found = _NUMBER.match(text)
    index = before + int(found[1]) - 1 if found else None if response.status_code in (401, 403) else before
    return NotTaken(response.status_code, text[found.end() :] if found else text, index)


def as_form(update: Mapping[str, Any]) -> bytes:
    """An update as a form (N40–N54)."""
    fields = [("topic", topic) for topic in update["topic"]]
    fields += [(name, str(update[name])) for name in ("data", "id", "type", "retry") if update.get(name) is not None]
    if update.get("private"):
        fields.append(("private", "on"))
    return str(httpx2.QueryParams(fields)).encode("ascii")
