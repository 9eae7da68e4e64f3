"""Form, query and headers -> values.  Pure, and the only place that decodes what a client sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote_to_bytes

from hub.errors import InvalidRequest, TooLarge
from hub.topics import CLASSIC, MATCHER_TYPES, TopicMatcher, check_text, compile_topic_matcher
from hub.updates import Update, new_id
from skipfilter import PatternError
from skipfilter.errors import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hub.settings import Settings

Headers = list[tuple[bytes, bytes]]
"""The headers of an ASGI scope: names in lower case."""

_MATCHER_PARAMETERS: Final = {"topic": CLASSIC, "match": "exact"} | {f"match_{type}": type for type in MATCHER_TYPES}
# In order of precedence, after the header (N13, V85).
_CURSOR_PARAMETERS: Final = ("last_event_id", "lastEventID", "lastEventId", "Last-Event-ID")


class SubscribeRequest(NamedTuple):
    matchers: tuple[TopicMatcher, ...]
    last_event_id: str | None
    """None where the client gave none, "" where it gave an empty one (N107)."""


def header_values(headers: Headers, name: bytes) -> list[bytes]:
    return [value for key, value in headers if key == name]


def parse_form(text: bytes) -> list[tuple[str, str]]:
    """The pairs of an application/x-www-form-urlencoded text, by the WHATWG's parser, but strict about UTF-8.

    A malformed % stays as it is (N14); bytes that are no UTF-8 raise InvalidRequest (N3).
    """
    pairs = []
    for pair in text.split(b"&"):
        if pair:
            name, _, value = pair.partition(b"=")
            pairs.append((_decode(name), _decode(value)))
    return pairs


def _decode(text: bytes) -> str:
    raw = unquote_to_bytes(text.replace(b"+", b" "))
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{shown(raw)} is not valid UTF-8: {error.reason} at byte {error.start}") from None


def parse_subscribe(query: bytes, headers: Headers, settings: Settings) -> SubscribeRequest:
    """What a subscribe request asks for (N15–N20, V1–V3)."""
    pairs = parse_form(query)
    matchers = [matcher for name, value in pairs if (matcher := _parse_matcher(name, value, settings))]
    if not matchers:
        raise InvalidRequest('missing "match" or "topic" parameter: there is nothing to subscribe to')
    if len(matchers) > settings.max_matchers:
        raise InvalidRequest(f"{len(matchers)} matchers are more than the {settings.max_matchers} of a request")
    return SubscribeRequest(tuple(dict.fromkeys(matchers)), _parse_cursor(pairs, headers))


def _parse_matcher(name: str, value: str, settings: Settings) -> TopicMatcher | None:
    type = _MATCHER_PARAMETERS.get(name)
    if type is None:
        # Reserved under ASCII-case-insensitive comparison (N16): str.lower() may change non-ASCII letters too,
        # but turns none but the Kelvin sign into an ASCII one, and "match" has no k.
        if name[:5].lower() == "match":
            known = ", ".join(name for name in _MATCHER_PARAMETERS if name != "topic")
            raise InvalidRequest(f"parameter {shown(name)} is none of {known}")
        return None
    check_text(name, value)
    check_pattern_length(value, settings)
    try:
        return compile_topic_matcher(type, value)
    except PatternError as error:
        raise InvalidRequest(str(error)) from None


def check_pattern_length(pattern: str, settings: Settings) -> None:
    if (length := len(pattern.encode("utf-8", "surrogatepass"))) > settings.max_pattern:
        raise InvalidRequest(f"a pattern of {length} bytes is longer than {settings.max_pattern}")


def _parse_cursor(pairs: Sequence[tuple[str, str]], headers: Headers) -> str | None:
    # EventSource sends the id as UTF-8, which an ASGI server hands on as bytes (R77).
    for value in header_values(headers, b"last-event-id"):
        return value.decode("utf-8", "replace")
    for name in _CURSOR_PARAMETERS:
        for key, text in pairs:
            if key == name:
                return text
    return None


def parse_update(body: bytes, content_type: bytes, settings: Settings) -> Update:
    """The update that a publish request's body says (N40–N54)."""
    if content_type.partition(b";")[0].strip().lower() != b"application/x-www-form-urlencoded":
        given = content_type.decode("latin-1")
        raise InvalidRequest(f"the content type must be application/x-www-form-urlencoded, not {shown(given)}")
    pairs = parse_form(body)
    topics = tuple(value for name, value in pairs if name == "topic")
    if len(topics) > settings.max_topics:
        raise TooLarge(f"{len(topics)} topics are more than the {settings.max_topics} of an update")
    fields = dict(reversed(pairs))  # the first of each name
    for name, value in [("topic", topic) for topic in topics] + [
        (name, fields.get(name, "")) for name in ("id", "type")
    ]:
        if len(value.encode("utf-8")) > settings.max_topic:
            raise TooLarge(f"{name} {shown(value)} is longer than {settings.max_topic} bytes")
    return Update(
        topics,
        data=fields.get("data", ""),
        private="private" in fields,  # N50: the name alone
        id=fields.get("id") or new_id(),
        type=fields.get("type") or None,
        retry=_parse_retry(fields.get("retry", "")),
    )


def _parse_retry(text: str) -> int | None:
    """Milliseconds.  ASCII digits alone (N53); int() would take more, and without a limit."""
    if not text:
        return None
    if not (text.isascii() and text.isdigit()) or len(text) > 15:
        raise InvalidRequest(f"retry {shown(text)} is not a number of milliseconds in up to 15 digits")
    return int(text)


def parse_cookies(headers: Headers) -> Iterable[tuple[str, str]]:
    """The cookies of a request, in their order."""
    for header in header_values(headers, b"cookie"):
        for pair in header.decode("latin-1").split(";"):
            name, _, value = pair.partition("=")
            yield name.strip(), value.strip().strip('"')
