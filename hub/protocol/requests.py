"""Form, query and headers -> values.  Pure, and the only place that decodes what a client sent."""

from __future__ import annotations

import json
import string
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol
from urllib.parse import unquote_to_bytes

from hub.errors import InvalidRequest, NotFound, TooLarge
from hub.protocol.topics import CLASSIC, MATCHER_TYPES, check_text, subscriptions_path
from hub.protocol.updates import Update, new_id
from skipfilter.text import shown

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Sequence

    from skipfilter import Selector

Headers = list[tuple[bytes, bytes]]
"""The headers of an ASGI scope: names in lower case."""

_MATCHER_PARAMETERS: Final = {CLASSIC: CLASSIC, "match": "exact"} | {f"match_{type}": type for type in MATCHER_TYPES}
# In order of precedence, after the header (N13, V85).
_CURSOR_PARAMETERS: Final = ("last_event_id", "lastEventID")
_CLASSIC_CURSOR_PARAMETERS: Final = ("lastEventId", "Last-Event-ID")
_FIELDS: Final = frozenset(["topic", "data", "private", "id", "type", "retry"])
_LONGEST_RETRY: Final = 24 * 60 * 60 * 1_000
"""Milliseconds: a day.  A publisher of one topic tells its readers when to come back to all of theirs."""
_OTHER_FIELDS: Final = 1_000  # of a form; to look at very many would keep all others waiting
_HEXADECIMAL: Final = frozenset(string.hexdigits)

FORM: Final = "application/x-www-form-urlencoded"
NDJSON: Final = "application/x-ndjson"


class Limits(Protocol):
    """What a hub takes: the settings by which requests are checked.  `Settings` has them."""

    @property
    def path(self) -> str: ...
    @property
    def classic(self) -> bool: ...
    @property
    def max_matchers(self) -> int: ...
    @property
    def max_classic_matchers(self) -> int: ...
    @property
    def max_matchers_bytes(self) -> int: ...
    @property
    def max_pattern(self) -> int: ...
    @property
    def max_topic(self) -> int: ...
    @property
    def max_topics(self) -> int: ...
    @property
    def max_batch(self) -> int: ...


class SubscribeRequest(NamedTuple):
    selectors: tuple[Selector, ...]
    """Matcher types and patterns, each once, of a bounded length; not compiled yet."""
    last_event_id: str | None
    """None if the client gave none, "" if it gave empty ones alone (N107)."""


def header_values(headers: Headers, name: bytes) -> list[bytes]:
    return [value for key, value in headers if key == name]


def parse_form(text: bytes, strict: Container[str]) -> list[tuple[str, str]]:
    """The pairs of an application/x-www-form-urlencoded text, by the WHATWG's parser (N14): a malformed % stays.

    Bytes that are no UTF-8 become U+FFFD, but in the values of the `strict` names they raise InvalidRequest (N3).  It
    tells the name alone: errors are logged, and a value may be private (N163).
    """
    pairs = []
    for pair in text.split(b"&"):
        if pair:
            raw_name, _, raw_value = pair.partition(b"=")
            name, value = _unquote(raw_name).decode("utf-8", "replace"), _unquote(raw_value)
            pairs.append(
                (name, decode_utf_8(repr(name), value) if name in strict else value.decode("utf-8", "replace"))
            )
    return pairs


def take_tokens(query: bytes) -> tuple[bytes, tuple[str, ...]]:
    """The query without its tokens, and those of the classic `authorization` parameter (V42).

    An `access_token` is not accepted (N60), and taken out all the same: what is left may be logged.
    """
    rest, tokens = [], []
    for pair in query.split(b"&"):
        name, _, value = pair.partition(b"=")
        match _unquote(name):
            case b"authorization":
                tokens.append(_unquote(value).decode("utf-8", "replace"))
            case b"access_token":
                pass
            case _:
                rest.append(pair)
    return b"&".join(rest), tuple(tokens)


def _unquote(text: bytes) -> bytes:
    return unquote_to_bytes(text.replace(b"+", b" "))


def decode_utf_8(what: str, raw: bytes) -> str:
    """`raw`, or InvalidRequest (N3), which says what it is."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{what} is not valid UTF-8: {error.reason} at byte {error.start}") from None


def parse_subscribe(query: bytes, body: bytes, headers: Headers, limits: Limits) -> SubscribeRequest:
    """Return what a subscribe request asks for: all that its query and its body say together (N12–N20, V1–V3).

    Names, numbers and lengths are checked here.  Patterns are compiled later, which costs, for a client that was
    admitted.
    """
    most = limits.max_matchers + (limits.max_classic_matchers if limits.classic else 0)
    if query.count(b"&") + body.count(b"&") > most + _OTHER_FIELDS:
        raise InvalidRequest(f"more parameters than {most} matchers, and {_OTHER_FIELDS} others")
    pairs = parse_form(query, _MATCHER_PARAMETERS) + parse_form(body, _MATCHER_PARAMETERS)
    wanted = [(name, value) for name, value in pairs if _is_matcher(name, limits)]
    _check_matchers(wanted, limits)
    selectors = dict.fromkeys((_MATCHER_PARAMETERS[name], value) for name, value in wanted)
    return SubscribeRequest(tuple(selectors), _parse_cursor(pairs, headers, limits))


def _is_matcher(name: str, limits: Limits) -> bool:
    """Whether it is the name of a matcher parameter.  Raises InvalidRequest for one that no other may have."""
    if name == CLASSIC and not limits.classic:  # V88
        raise InvalidRequest('"topic" is of the classic dialect, which this hub does not speak: use "match"')
    if name in _MATCHER_PARAMETERS:
        return True
    # Reserved under ASCII-case-insensitive comparison (N16): str.lower() may change non-ASCII letters too,
    # but turns none but the Kelvin sign into an ASCII one, and "match" has no k.
    if name[:5].lower() == "match":
        known = ", ".join(name for name in _MATCHER_PARAMETERS if name != CLASSIC)
        raise InvalidRequest(f"parameter {shown(name)} is none of {known}")
    return False


def _check_matchers(wanted: Sequence[tuple[str, str]], limits: Limits) -> None:
    """Raise InvalidRequest unless there are matchers, not too many or too long (N18, V1), and all are text (N17)."""
    if not wanted:
        classic = ' or "topic"' if limits.classic else ""
        raise InvalidRequest(f'missing "match"{classic} parameter: there is nothing to subscribe to')
    topics = size = 0
    for name, value in wanted:
        topics += name == CLASSIC
        size += len(value.encode("utf-8"))
    for count, limit, what in (
        (len(wanted) - topics, limits.max_matchers, "matchers"),
        (topics, limits.max_classic_matchers, "topics"),
    ):
        if count > limit:
            raise InvalidRequest(f"{count} {what} are more than the {limit} of a request")
    if size > limits.max_matchers_bytes:
        raise InvalidRequest(f"patterns of {size} bytes are more than the {limits.max_matchers_bytes} of a request")
    for name, value in wanted:
        check_text(name, value)
        if name != CLASSIC:
            check_pattern_length(value, limits)


def check_pattern_length(pattern: str, limits: Limits) -> None:
    if (length := len(pattern.encode("utf-8", "surrogatepass"))) > limits.max_pattern:
        raise InvalidRequest(f"a pattern of {length} bytes is longer than {limits.max_pattern}")


def _parse_cursor(pairs: Sequence[tuple[str, str]], headers: Headers, limits: Limits) -> str | None:
    # EventSource sends the id as UTF-8, which an ASGI server hands on as bytes (R77).
    given = [value.decode("utf-8", "replace") for value in header_values(headers, b"last-event-id")]
    names = _CURSOR_PARAMETERS + (_CLASSIC_CURSOR_PARAMETERS if limits.classic else ())
    if parameters := [pair for pair in pairs if pair[0] in names]:  # those of the query come first (N13)
        given += [text for name in names for key, text in parameters if key == name]
    # A page that has no cursor yet sends an empty one, which says less than any other.
    return next(filter(None, given), "" if given else None)


def content_type(headers: Headers) -> str:
    """The media type of a body, without parameters; "" where none is given."""
    value = next(iter(header_values(headers, b"content-type")), b"")
    return value.partition(b";")[0].strip().lower().decode("latin-1")


def preferences(headers: Headers) -> frozenset[str]:
    """Return what the client prefers (RFC 7240), in lower case, without quotes and parameters.

    `wait=0` prefers the end of an event stream to waiting for later events.
    """
    parts = b",".join(header_values(headers, b"prefer")).decode("latin-1").lower().split('"')
    parts[1::2] = (quoted.replace(",", " ").replace(";", " ") for quoted in parts[1::2])
    return frozenset(preference.partition(";")[0].strip() for preference in "".join(parts).split(","))


def read_updates(body: bytes, type: str, limits: Limits) -> Iterator[tuple[int, Update]]:
    """The updates that a publish request's body says, each with the bytes of the body before it.

    A form is one (N40–N54), a line of JSON is one (NDJSON).  One is parsed at a time, so that the caller may let others
    run in between.
    """
    if type == NDJSON:
        yield from _read_batch(body, limits)
    elif type == FORM:
        yield 0, _parse_form_update(body, limits)
    else:
        raise InvalidRequest(f"the content type must be {FORM} or {NDJSON}, not {shown(type)}")


def _parse_form_update(body: bytes, limits: Limits) -> Update:
    if body.count(b"&") > limits.max_topics + _OTHER_FIELDS:
        raise TooLarge(f"more fields than {limits.max_topics} topics, and {_OTHER_FIELDS} others")
    pairs = parse_form(body, _FIELDS)
    fields = dict(reversed(pairs))  # the first of each name
    topics = tuple(value for name, value in pairs if name == "topic")
    retry = _parse_retry(fields.get("retry", ""))
    private = "private" in fields  # N50: the name alone
    return _update(topics, fields.get("data"), private, fields.get("id"), fields.get("type"), retry, limits)


def _update(
    topics: tuple[str, ...],
    data: str | None,
    private: bool,
    id: str | None,
    type: str | None,
    retry: int | None,
    limits: Limits,
) -> Update:
    """What was given as an update, or TooLarge (N56).  An empty id or type is none, and a retry is at most a day."""
    if len(topics) > limits.max_topics:
        raise TooLarge(f"{len(topics)} topics are more than the {limits.max_topics} of an update")
    for name, value in [("topic", topic) for topic in topics] + [("id", id or ""), ("type", type or "")]:
        if len(value) > limits.max_topic // 4 and len(value.encode("utf-8")) > limits.max_topic:
            raise TooLarge(f"{name} {shown(value)} is longer than {limits.max_topic} bytes")
    retry = None if retry is None else min(retry, _LONGEST_RETRY)
    return Update(topics, data or "", private, id or new_id(), type or None, retry)


def _parse_retry(text: str) -> int | None:
    """Milliseconds.  ASCII digits alone, however many (N53); int() would take other digits, and fewer of them."""
    if not text:
        return None
    if not (text.isascii() and text.isdigit()):
        raise InvalidRequest(f"retry {shown(text)} is no number of milliseconds in digits")
    return int(text.lstrip("0")[: len(str(_LONGEST_RETRY)) + 1] or "0")


def _read_batch(body: bytes, limits: Limits) -> Iterator[tuple[int, Update]]:
    """An update a line, as an object with the members that a form has as fields; empty lines are nothing.

    `topic` is a string or an array of them, `private` a boolean, and `retry` an integer.
    """
    count = start = 0
    for line in body.split(b"\n"):
        if text := line.strip():
            if count == limits.max_batch:
                raise TooLarge(f"more updates than the {limits.max_batch} of a request")
            count += 1
            try:
                update = _parse_line(text, limits)
            except (InvalidRequest, TooLarge) as error:
                raise error.__class__(f"update {count}: {error}") from None
            yield start, update
        start += len(line) + 1
    if not count:
        raise InvalidRequest("there is no update in the body")


def _parse_line(line: bytes, limits: Limits) -> Update:
    try:
        members = _JSON.decode(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, json.JSONDecodeError) else "not UTF-8, too deep, or a number too long"
        raise InvalidRequest(f"it is no JSON: {reason}") from None
    if not isinstance(members, dict):
        raise InvalidRequest("it is no JSON object")
    topics = members.get("topic", [])
    if isinstance(topics, str):
        topics = [topics]
    if not isinstance(topics, list):
        raise InvalidRequest("topic is neither a string nor an array of strings")
    data, id, type = (members.get(name) for name in ("data", "id", "type"))
    for name, value in [("topic", topic) for topic in topics] + [("data", data), ("id", id), ("type", type)]:
        if isinstance(value, str):
            try:
                value.encode("utf-8")
            except UnicodeEncodeError:
                raise InvalidRequest(f"{name} is not Unicode: it has a lone surrogate") from None
        elif value is not None or name == "topic":
            raise InvalidRequest(f"{name} is no string")
    private, retry = members.get("private", False), members.get("retry")
    if not isinstance(private, bool):  # a reader must not come to see what somebody meant to be private
        raise InvalidRequest(f"private {shown(repr(private))} is neither true nor false")
    if isinstance(retry, bool) or not isinstance(retry, int | None) or (retry or 0) < 0:
        raise InvalidRequest(f"retry {shown(repr(retry))} is no number of milliseconds")
    return _update(tuple(topics), data, private, id, type, retry, limits)


def _members(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) < len(pairs):  # of two values for private, which one was meant?
        raise InvalidRequest("an object has a member twice")
    return members


_JSON: Final = json.JSONDecoder(object_pairs_hook=_members)


def parse_cookies(headers: Headers) -> Iterable[tuple[str, str]]:
    """The cookies of a request, in their order."""
    for header in header_values(headers, b"cookie"):
        for pair in header.decode("latin-1").split(";"):
            name, _, value = pair.partition("=")
            yield name.strip(), value.strip().strip('"')


class SubscriptionPath(NamedTuple):
    """What a request to the subscription API asks for."""

    matcher: tuple[str, str] | None
    """Type and pattern; None for all."""
    subscriber: str | None
    """None for all."""
    classic: bool | None
    """In which dialect; None where the path is the same in both."""


def parse_subscription_path(path: str, limits: Limits) -> SubscriptionPath:
    """What comes after HUB/subscriptions in a path that is still percent-encoded (N130, N139, V63, V74).

    A first segment that is a matcher type is one (V87).
    """
    below = subscriptions_path(limits.path)
    if not (path + "/").startswith(below + "/"):  # the hub's own segments, percent-encoded
        raise NotFound(f"subscriptions are at {below}")
    segments = path[len(below) :].split("/")[1:]
    match [_decode_segment(segment) for segment in segments]:
        case []:
            return SubscriptionPath(None, None, None)
        case [type, pattern] if type in MATCHER_TYPES:
            return SubscriptionPath((type, pattern), None, classic=False)
        case [type, pattern, subscriber] if type in MATCHER_TYPES:
            return SubscriptionPath((type, pattern), subscriber, classic=False)
        case [_] | [_, _] if limits.classic:  # where a space may be a `+` (V60)
            topic, *rest = (_decode_segment(segment.replace("+", "%20")) for segment in segments)
            return SubscriptionPath((CLASSIC, topic), rest[0] if rest else None, classic=True)
        case [type, _] | [type, _, _]:
            raise InvalidRequest(f"matcher type {shown(type)} is none of {', '.join(MATCHER_TYPES)}")
    raise NotFound(f"subscriptions are at {below}/match_type/match/subscriber, each percent-encoded")


def _decode_segment(segment: str) -> str:
    """Not as in a form: `+` is a plus, and a malformed % an error (N139)."""
    for digits in segment.split("%")[1:]:
        if len(digits) < 2 or not set(digits[:2]) <= _HEXADECIMAL:
            raise InvalidRequest(f"{shown(segment)} has a % without two hexadecimal digits after it")
    return decode_utf_8(f"segment {shown(segment)}", unquote_to_bytes(segment))
