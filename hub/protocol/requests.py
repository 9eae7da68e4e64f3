"""Parses forms, queries, headers, JSON and JSON lines into values.

All decoding of texts from clients is here.  The functions are pure.
"""

from __future__ import annotations

import json
import re
import string
from codecs import BOM_UTF8
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol
from urllib.parse import unquote_to_bytes

from hub.errors import InvalidRequest, NotFound, TooLarge
from hub.protocol.data import patterns_of, require_topics
from hub.protocol.events import WITH_SIGNALS
from hub.protocol.topics import CLASSIC, MATCHER_TYPES, check_text, subscriptions_path
from hub.protocol.updates import Update, new_id
from skipfilter.text import shown

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Sequence

    from hub.protocol.data import Matchers
    from skipfilter import Selector

Headers = list[tuple[bytes, bytes]]
"""The headers of an ASGI scope.  Names are in lower case."""

_MATCHER_PARAMETERS: Final = {CLASSIC: CLASSIC, "match": "exact"} | {f"match_{type}": type for type in MATCHER_TYPES}
# In the order of precedence; the header comes before all of them (N13, V85).
_CURSOR_PARAMETERS: Final = ("last_event_id", "lastEventID")
_SIGNALS, _ON = WITH_SIGNALS
_CLASSIC_CURSOR_PARAMETERS: Final = ("lastEventId", "Last-Event-ID")
FIELDS: Final = frozenset(["topic", "data", "private", "id", "type", "retry"])
"""The fields of an update in a form, and its members in JSON."""
_MAX_RETRY_MS: Final = 24 * 60 * 60 * 1_000
"""One day.

There is a bound, because an update of one topic sets the reconnection time of its
readers for all their topics.
"""
_MAX_OTHER_FIELDS: Final = 1_000  # of a form; parsing very many would delay other requests
_MAY_NAME_TOKEN: Final = re.compile(rb"(?:^|&)[a%]")
"""The beginning of a parameter whose name may be that of a token."""
_HEXADECIMAL: Final = frozenset(string.hexdigits)

FORM: Final = "application/x-www-form-urlencoded"
NDJSON: Final = "application/x-ndjson"
JSON: Final = "application/json"
_LONGEST_TYPE: Final = 256
_JSON_PARAMETERS: Final = (b"", b"charset=utf-8", b'charset="utf-8"')


class Limits(Protocol):
    """The settings that limit requests.

    `Settings` implements it, and documents each of them.
    """

    @property
    def path(self) -> str:
        """The path of the hub URL."""

    @property
    def classic(self) -> bool:
        """Whether the classic dialect is on."""

    @property
    def max_matchers(self) -> int:
        """The maximum number of matchers in a subscribe request."""

    @property
    def max_classic_matchers(self) -> int:
        """The maximum number of classic matchers in a subscribe request."""

    @property
    def max_matchers_bytes(self) -> int:
        """The maximum number of bytes in all patterns of a subscribe request."""

    @property
    def max_pattern(self) -> int:
        """The maximum number of bytes in a pattern."""

    @property
    def max_topic(self) -> int:
        """The maximum number of bytes in a topic, an id or a type."""

    @property
    def max_topics(self) -> int:
        """The maximum number of topics of an update."""

    @property
    def max_batch(self) -> int:
        """The maximum number of updates in a request."""


class SubscribeRequest(NamedTuple):
    """What a subscribe request asks for."""

    selectors: tuple[Selector, ...]
    """Matcher types and patterns, without repeats.

    Their number and length are checked, but they are not compiled yet.
    """
    last_event_id: str | None
    """The cursor; None if there is none, "" if there are only empty ones (N107)."""
    signals: bool
    """Whether the client wants signals (R91)."""


def header_values(headers: Headers, name: bytes) -> list[bytes]:
    """Return the values of a header, in their order; `name` is in lower case."""
    return [value for key, value in headers if key == name]


def parse_form(text: bytes, strict: Container[str]) -> list[tuple[str, str]]:
    """Return the pairs of an application/x-www-form-urlencoded text, in their order.

    It follows the WHATWG algorithm, so a malformed % stays as it is (N14).  Bytes that
    are not UTF-8 become U+FFFD.

    Raises InvalidRequest if a value of a name in `strict` is not UTF-8 (N3).  The
    message has the name only, because errors are logged, and a value may be private
    (N163).
    """
    pairs = []
    for pair in text.replace(b"+", b" ").split(b"&"):
        if pair:
            raw_name, _, value = pair.partition(b"=")
            if b"%" in raw_name:
                raw_name = unquote_to_bytes(raw_name)
            if b"%" in value:
                value = unquote_to_bytes(value)
            name = raw_name.decode("utf-8", "replace")
            try:
                pairs.append((name, value.decode("utf-8")))
            except UnicodeDecodeError as error:
                if name in strict:
                    raise _not_utf_8(repr(name), error) from None
                pairs.append((name, value.decode("utf-8", "replace")))
    return pairs


def take_tokens(query: bytes) -> tuple[bytes, tuple[str, ...]]:
    """Return the query without its tokens, and the `authorization` tokens (V42).

    An `access_token` is removed too, although it is not accepted (N60), because the
    rest of the query may be logged.
    """
    if not _MAY_NAME_TOKEN.search(query):  # a shortcut for most queries
        return query, ()
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
    """Return `raw` as text.

    Raises InvalidRequest with the name `what` if it is not valid UTF-8 (N3).
    """
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _not_utf_8(what, error) from None


def _not_utf_8(what: str, error: UnicodeDecodeError) -> InvalidRequest:
    return InvalidRequest(f"{what} is not valid UTF-8: {error.reason} at byte {error.start}")


def parse_subscribe(query: bytes, body: bytes, headers: Headers, limits: Limits) -> SubscribeRequest:
    """Return what the query and the body of a subscribe request ask for together.

    Names, numbers and lengths are checked here (N12–N20, V1–V3).  Patterns are compiled
    after the client was admitted, because compiling is costly.

    Raises InvalidRequest if the request breaks a rule.
    """
    # Too many parameters are refused before they are parsed.
    most = limits.max_matchers + (limits.max_classic_matchers if limits.classic else 0)
    if query.count(b"&") + body.count(b"&") > most + _MAX_OTHER_FIELDS:
        raise InvalidRequest(f"more parameters than {most} matchers, and {_MAX_OTHER_FIELDS} others")
    pairs = parse_form(query, _MATCHER_PARAMETERS)
    if body:
        pairs += parse_form(body, _MATCHER_PARAMETERS)
    wanted = [(name, value) for name, value in pairs if _is_matcher(name, limits)]
    _check_matchers(wanted, limits)
    selectors = dict.fromkeys((_MATCHER_PARAMETERS[name], value) for name, value in wanted)
    return SubscribeRequest(tuple(selectors), _parse_cursor(pairs, headers, limits), _wants_signals(pairs))


def selectors_of(topics: Sequence[str], matchers: Matchers) -> list[Selector]:
    """Return what a program asks for: `topics` as in the classic dialect, and matchers
    by the names of their parameters, such as `match_mqtt`.

    Raises TypeError if there is no parameter with a name, and InvalidRequest if nothing
    is asked for.

    >>> selectors_of(["a"], {"match_mqtt": ["b/#", "c"]})
    [('topic', 'a'), ('mqtt', 'b/#'), ('mqtt', 'c')]
    """
    require_topics(topics)
    selectors = [(CLASSIC, topic) for topic in topics]
    for name, pattern in patterns_of(matchers):
        if name not in _MATCHER_PARAMETERS:
            raise TypeError(f"{name} is not the name of a matcher: there are {', '.join(_MATCHER_PARAMETERS)}")
        selectors.append((_MATCHER_PARAMETERS[name], pattern))
    if not selectors:
        raise InvalidRequest("there is no topic and no matcher")
    return selectors


def parameters(limits: Limits) -> frozenset[str]:
    """Return the names of the parameters of a subscribe request that have a meaning."""
    classic = (CLASSIC, *_CLASSIC_CURSOR_PARAMETERS) if limits.classic else ()
    return frozenset({*_MATCHER_PARAMETERS, *_CURSOR_PARAMETERS, _SIGNALS} - {CLASSIC}) | {*classic}


def _is_matcher(name: str, limits: Limits) -> bool:
    """Whether `name` is the name of a matcher parameter.

    Raises InvalidRequest if the name is reserved, or if the dialect of it is off.
    """
    if name == CLASSIC and not limits.classic:  # V88
        raise InvalidRequest('"topic" is of the classic dialect, which this hub does not speak: use "match"')
    if name in _MATCHER_PARAMETERS:
        return True
    # Names are reserved if they start with "match" in any ASCII case (N16).
    # str.lower() turns only one other character into an ASCII letter, the Kelvin sign
    # into a k, and "match" has no k.
    if name[:5].lower() == "match":
        known = ", ".join(name for name in _MATCHER_PARAMETERS if name != CLASSIC)
        raise InvalidRequest(f"parameter {shown(name)} is none of {known}")
    return False


def _check_matchers(wanted: Sequence[tuple[str, str]], limits: Limits) -> None:
    """Raise InvalidRequest unless the matchers are valid.

    There must be at least one.  Their number and length are limited (N18, V1), and
    their patterns must be valid text (N17).
    """
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
            raise InvalidRequest(f"the request has {count} {what}; the limit is {limit}")
    if size > limits.max_matchers_bytes:
        raise InvalidRequest(f"the patterns have {size} bytes; the limit is {limits.max_matchers_bytes}")
    for name, value in wanted:
        check_text(name, value)
        if name != CLASSIC:
            check_pattern_length(value, limits)


def check_pattern_length(pattern: str, limits: Limits) -> None:
    """Raise InvalidRequest if a pattern has too many bytes (N18, N77)."""
    if (length := len(pattern.encode("utf-8", "surrogatepass"))) > limits.max_pattern:
        raise InvalidRequest(f"a pattern has {length} bytes; the limit is {limits.max_pattern}")


def _parse_cursor(pairs: Sequence[tuple[str, str]], headers: Headers, limits: Limits) -> str | None:
    # EventSource sends the id as UTF-8, and an ASGI server passes on the bytes (R77).
    given = [value.decode("utf-8", "replace") for value in header_values(headers, b"last-event-id")]
    names = _CURSOR_PARAMETERS + (_CLASSIC_CURSOR_PARAMETERS if limits.classic else ())
    if parameters := [pair for pair in pairs if pair[0] in names]:  # the query comes before the body (N13)
        given += [text for name in names for key, text in parameters if key == name]
    # A page that has no cursor yet sends an empty one, so any other takes precedence.
    return next(filter(None, given), "" if given else None)


def _wants_signals(pairs: Sequence[tuple[str, str]]) -> bool:
    """Whether there is the parameter `signals`.

    Raises InvalidRequest if it is not 1.
    """
    given = [value for name, value in pairs if name == _SIGNALS]
    for value in given:
        if value != _ON:
            raise InvalidRequest(f"{_SIGNALS} must be {_ON}, not {shown(value)}")
    return bool(given)


def content_type(headers: Headers) -> str:
    """Return the media type of the body, without parameters; "" if there is none.

    A type of JSON that has other parameters than a charset of UTF-8 is returned whole,
    so that it is no known type.
    """
    for name, given in headers:
        if name == b"content-type":
            # A longer one would fill the cache.
            return _media_type(given) if len(given) <= _LONGEST_TYPE else _media_type.__wrapped__(given)
    return ""


@lru_cache(64)
def _media_type(value: bytes) -> str:
    value = value.strip().lower()
    type, _, parameters = value.partition(b";")
    known = type.strip() != JSON.encode() or parameters.strip() in _JSON_PARAMETERS
    return (type.strip() if known else value).decode("latin-1")


def preferences(headers: Headers) -> frozenset[str]:
    """Return the preferences of the client (RFC 7240).

    They are in lower case, without quotes and parameters.  With `wait=0`, the client
    wants an event stream to end instead of waiting for later events.
    """
    given = header_values(headers, b"prefer")
    if not given:
        return frozenset()
    # Each odd part was in quotes.  A comma or semicolon in it separates nothing.
    parts = b",".join(given).decode("latin-1").lower().split('"')
    parts[1::2] = (quoted.replace(",", " ").replace(";", " ") for quoted in parts[1::2])
    return frozenset(preference.partition(";")[0].strip() for preference in "".join(parts).split(","))


def read_updates(body: bytes, type: str, limits: Limits) -> Iterator[tuple[int, Update]]:
    """Yield the updates in the body of a publish request, each with its byte offset.

    A form is one update (N40–N54), and so is each line of NDJSON, an object of JSON, or
    each object of an array.  A byte order mark before JSON is left out.  An update is
    parsed when the caller asks for it, so that the caller can let other tasks run in
    between.

    Raises InvalidRequest or TooLarge, perhaps after some updates.
    """
    if type == NDJSON:
        yield from _read_lines(body.removeprefix(BOM_UTF8), limits)
    elif type == JSON:
        yield from _read_json(body.removeprefix(BOM_UTF8), limits)
    elif type == FORM:
        yield 0, parse_form_update(body, limits)
    else:
        raise InvalidRequest(f"the content type must be {FORM}, {JSON} or {NDJSON}, not {shown(type)}")


def parse_form_update(body: bytes, limits: Limits) -> Update:
    """Return the update in a form (N40–N54).

    Raises InvalidRequest or TooLarge.
    """
    if body.count(b"&") > limits.max_topics + _MAX_OTHER_FIELDS:
        raise TooLarge(f"more fields than {limits.max_topics} topics, and {_MAX_OTHER_FIELDS} others")
    pairs = parse_form(body, FIELDS)
    fields = dict(reversed(pairs))  # the first field of each name counts
    topics = tuple([value for name, value in pairs if name == "topic"])
    retry = _parse_retry(fields.get("retry", ""))
    private = "private" in fields  # N50: the value does not matter
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
    """Return an update with these fields.

    An empty id or type counts as missing, and a longer retry becomes a day.  Raises
    TooLarge if there are too many topics, or if a topic, the id or the type is too long
    (N56).
    """
    if len(topics) > limits.max_topics:
        raise TooLarge(f"there are {len(topics)} topics; the limit is {limits.max_topics}")
    most = limits.max_topic
    for topic in topics:
        _check_length("topic", topic, most)
    if id:
        _check_length("id", id, most)
    if type:
        _check_length("type", type, most)
    retry = None if retry is None else min(retry, _MAX_RETRY_MS)
    return Update(topics, data or "", private, id or new_id(), type or None, retry)


def _check_length(name: str, value: str, most: int) -> None:
    # A character has at most four bytes.
    if len(value) > most // 4 and len(value.encode("utf-8")) > most:
        raise TooLarge(f"{name} {shown(value)} is longer than {most} bytes")


def _parse_retry(text: str) -> int | None:
    """Return a retry in milliseconds, or None if the text is empty (N53).

    Any number of ASCII digits is accepted.  int() would accept other digits too, and it
    limits their number.
    """
    if not text:
        return None
    if not (text.isascii() and text.isdigit()):
        raise InvalidRequest(f"retry {shown(text)} is not a number of milliseconds in digits")
    # More digits than the maximum has are enough: such a number becomes the maximum.
    return int(text.lstrip("0")[: len(str(_MAX_RETRY_MS)) + 1] or "0")


def _read_lines(body: bytes, limits: Limits) -> Iterator[tuple[int, Update]]:
    """Yield the update of each line that is not empty, with its offset in bytes."""
    count = start = 0
    for line in body.split(b"\n"):
        if text := line.strip():
            count = _one_more(count, limits)
            try:
                update = _parse_members(_decode(text), limits)
            except (InvalidRequest, TooLarge) as error:
                raise error.__class__(f"update {count}: {error}") from None
            yield start, update
        start += len(line) + 1
    if not count:
        raise InvalidRequest(_NO_UPDATE)


def _read_json(body: bytes, limits: Limits) -> Iterator[tuple[int, Update]]:
    """Yield the update of an object, or of each object of an array, with its offset.

    An array is decoded object by object, so that the caller can pause in between.
    """
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidRequest("the body is not UTF-8") from None
    start = _skip_blank(text, 0)
    if start == len(text):
        raise InvalidRequest(_NO_UPDATE)
    if text[start] != "[":
        yield 0, _parse_members(_decode(body), limits)
        return
    count, end = 0, ""
    while end != "]":
        start = _skip_blank(text, start + 1)
        if not count and text.startswith("]", start):
            raise InvalidRequest(_NO_UPDATE)
        count = _one_more(count, limits)
        try:
            try:
                members, start = _JSON.raw_decode(text, start)
            except (ValueError, RecursionError) as error:
                raise _not_json(error) from None
            start = _skip_blank(text, start)
            end = text[start : start + 1]
            if end not in (",", "]"):
                raise InvalidRequest("it is not JSON: there is no comma or bracket after it")
            update = _parse_members(members, limits)
        except (InvalidRequest, TooLarge) as error:
            raise error.__class__(f"update {count}: {error}") from None
        yield start, update
    if _skip_blank(text, start + 1) < len(text):
        raise InvalidRequest("it is not JSON: there is more after the array")


def _one_more(count: int, limits: Limits) -> int:
    """Return the number of updates with one more; raise TooLarge above the limit."""
    if count == limits.max_batch:
        raise TooLarge(f"the request has more than {limits.max_batch} updates")
    return count + 1


def _skip_blank(text: str, start: int) -> int:
    """Return the position of the first character from `start` on that is not blank."""
    found = _BLANK.match(text, start)
    return start if found is None else found.end()


def _decode(text: bytes) -> object:
    """Return the value of JSON."""
    try:
        return _JSON.decode(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise _not_json(error) from None


def _not_json(error: Exception) -> InvalidRequest:
    reason = str(error) if isinstance(error, json.JSONDecodeError) else "not UTF-8, too deep, or a number too long"
    return InvalidRequest(f"it is not JSON: {reason}")


def _parse_members(members: object, limits: Limits) -> Update:
    """Return the update of an object.

    Its members are those that a form has as fields.  `topic` is a string or an array of
    strings, `private` a boolean, and `retry` an integer.
    """
    if not isinstance(members, dict):
        raise InvalidRequest("it is not a JSON object")
    topics = members.get("topic", [])
    if isinstance(topics, str):
        topics = [topics]
    if not isinstance(topics, list):
        raise InvalidRequest("topic is neither a string nor an array of strings")
    # All texts must be strings without lone surrogates; only topics must not be null.
    data, id, type = (members.get(name) for name in ("data", "id", "type"))
    for name, value in [("topic", topic) for topic in topics] + [("data", data), ("id", id), ("type", type)]:
        if isinstance(value, str):
            try:
                value.encode("utf-8")
            except UnicodeEncodeError:
                raise InvalidRequest(f"{name} is not Unicode: it has a lone surrogate") from None
        elif value is not None or name == "topic":
            raise InvalidRequest(f"{name} is not a string")
    private, retry = members.get("private", False), members.get("retry")
    # Other types are refused, because a guess could publish a private update to all.
    if not isinstance(private, bool):
        raise InvalidRequest(f"private {shown(repr(private))} is neither true nor false")
    if isinstance(retry, bool) or not isinstance(retry, int | None) or (retry or 0) < 0:
        raise InvalidRequest(f"retry {shown(repr(retry))} is not a number of milliseconds")
    return _update(tuple(topics), data, private, id, type, retry, limits)


def _members(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return the members of a JSON object; raise InvalidRequest if one is repeated."""
    members = dict(pairs)
    # With two values for `private`, for example, it is not clear which one is meant.
    if len(members) < len(pairs):
        raise InvalidRequest("an object has a member twice")
    return members


_JSON: Final = json.JSONDecoder(object_pairs_hook=_members)
_BLANK: Final = re.compile(r"[ \t\n\r]*")
_NO_UPDATE: Final = "there is no update in the body"


def parse_cookies(headers: Headers) -> Iterable[tuple[str, str]]:
    """Yield the names and values of the cookies of a request, in their order."""
    for header in header_values(headers, b"cookie"):
        for pair in header.decode("latin-1").split(";"):
            name, _, value = pair.partition("=")
            yield name.strip(), value.strip().strip('"')


class SubscriptionPath(NamedTuple):
    """Which subscriptions a request to the subscription API asks for."""

    matcher: tuple[str, str] | None
    """The type and pattern of a matcher; None for all."""
    subscriber: str | None
    """The id of a subscriber; None for all."""
    classic: bool | None
    """Whether the path is classic; None if it is the same in both dialects."""


def parse_subscription_path(path: str, limits: Limits) -> SubscriptionPath:
    """Return what a path below HUB/subscriptions asks for (N130, N139, V63, V74).

    The path must still be percent-encoded.  A first segment that is a matcher type
    counts as one (V87).

    Raises NotFound if there is no such route, and InvalidRequest if a segment is
    malformed or has an unknown matcher type.
    """
    below = subscriptions_path(limits.path)
    if not (path + "/").startswith(below + "/"):  # its own segments are percent-encoded
        raise NotFound(f"subscriptions are at {below}")
    segments = path[len(below) :].split("/")[1:]
    match [_decode_segment(segment) for segment in segments]:
        case []:
            return SubscriptionPath(None, None, None)
        case [type, pattern] if type in MATCHER_TYPES:
            return SubscriptionPath((type, pattern), None, classic=False)
        case [type, pattern, subscriber] if type in MATCHER_TYPES:
            return SubscriptionPath((type, pattern), subscriber, classic=False)
        case [_] | [_, _] if limits.classic:  # a space may be a `+` there (V60)
            topic, *rest = (_decode_segment(segment.replace("+", "%20")) for segment in segments)
            return SubscriptionPath((CLASSIC, topic), rest[0] if rest else None, classic=True)
        case [type, _] | [type, _, _]:
            raise InvalidRequest(f"matcher type {shown(type)} is none of {', '.join(MATCHER_TYPES)}")
    raise NotFound(f"subscriptions are at {below}/match_type/match/subscriber, each percent-encoded")


def _decode_segment(segment: str) -> str:
    """Return a segment of a path, decoded.

    It differs from a form: `+` is a plus, and a malformed % is an error (N139).
    """
    for digits in segment.split("%")[1:]:
        if len(digits) < 2 or not set(digits[:2]) <= _HEXADECIMAL:
            raise InvalidRequest(f"{shown(segment)} has a % without two hexadecimal digits after it")
    return decode_utf_8(f"segment {shown(segment)}", unquote_to_bytes(segment))
