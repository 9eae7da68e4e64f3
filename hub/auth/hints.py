"""Hints about tokens that are valid, but hardly do what was meant.

    "mercur": {…}           claim 'mercur' is unknown, and ignored
    "exp": 1795600000000    it counts seconds, not milliseconds
    grants /user/42 only    but the client subscribes to /users/42

They are for `skipfilter token`, and for the log when a client connects.  The functions
are pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hub.auth.claims import CLASSIC_CLAIMS, is_mercure_detail, shown_json
from hub.auth.grant import DETAIL_TYPE
from hub.protocol.hints import has_braces, nearest
from hub.protocol.topics import WILDCARD
from skipfilter.text import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hub.auth.claims import Unverified
    from hub.auth.grant import CompiledGrant
    from hub.protocol.topics import TopicMatcher
    from skipfilter import Selector

MAX_HINTS: Final = 10
"""Hints about one token, at most."""
MAX_COMPARED: Final = 100
"""Names in a token that are compared with known ones, and matchers of a grant, or of a
subscriber, that are compared, at most."""
_YEAR_10000: Final = 253_402_300_800
_SIMILAR: Final = 0.75
_OURS: Final = (*CLASSIC_CLAIMS, "authorization_details")
_REGISTERED: Final = frozenset(["iss", "sub", "aud", "exp", "nbf", "iat", "jti"])
"""Claims of RFC 7519, which are similar to each other."""
_MEMBERS: Final = ("publish", "subscribe", "payload")
_DETAIL_MEMBERS: Final = ("type", "actions", "topics", "payload")
_SIGNS: Final = "{*+#"
"""Characters with which a wildcard of some matcher type begins; URL Patterns have more.
"""


def token_hints(token: Unverified, granted: Iterable[Selector]) -> list[str]:
    """Return what is probably wrong with a token, which grants some patterns."""
    claims, found, selectors = token.claims, list[str](), list(granted)
    if braced := next((pattern for type, pattern in selectors if type == "exact" and has_braces(pattern)), None):
        found.append(f"the pattern {shown(braced)} is of the type exact, which takes braces as text: see uritemplate")
    expires = claims.get("exp")
    if isinstance(expires, int | float) and not isinstance(expires, bool) and expires >= _YEAR_10000:
        found.append(f"exp {shown_json(expires)} is after the year 9999: `exp` counts seconds, not milliseconds")
    found += _unknown("claim", claims, _OURS, {*_OURS, *_REGISTERED})
    if token.is_current:
        details = claims.get("authorization_details")
        for detail in details if isinstance(details, list) else []:
            if len(found) < MAX_HINTS:
                found += _detail_hints(detail)
    else:
        claim = next((claims[name] for name in CLASSIC_CLAIMS if name in claims), None)
        if isinstance(claim, dict):
            found += _unknown("member", claim, _MEMBERS, set(_MEMBERS), where=" of the mercure claim")
    nothing = [] if selectors else ["it grants nothing: neither to publish, nor to read private updates"]
    return list(dict.fromkeys(found))[: MAX_HINTS - 1] + nothing


def _detail_hints(detail: Any) -> list[str]:
    if not isinstance(detail, dict):
        return []
    if not is_mercure_detail(detail):
        type = detail.get("type")
        is_like_ours = isinstance(type, str) and ("mercure" in type or {"actions", "topics"} <= detail.keys())
        hint = f"a detail has the type {shown_json(type)}, and is ignored: it must be {DETAIL_TYPE!r}"
        return [hint] if is_like_ours else []
    found = _unknown("member", detail, _DETAIL_MEMBERS, set(_DETAIL_MEMBERS), where=" of a detail")
    actions = detail.get("actions")
    if isinstance(actions, list):
        others = [action for action in actions if isinstance(action, str) and action not in ("publish", "subscribe")]
        found += [f"the action {shown(one)} is ignored: there are 'publish' and 'subscribe'" for one in others[:1]]
    return found


def _unknown(
    what: str, given: Mapping[str, Any], known: tuple[str, ...], ignored: set[str], *, where: str = ""
) -> list[str]:
    """Return hints about names that are not known, but similar to a known one."""
    found = []
    for name in list(given)[:MAX_COMPARED]:
        if name in ignored:
            continue
        if similar := nearest(name[:80].lower(), known, _SIMILAR):
            found.append(f"{what} {shown(name)}{where} is unknown, and ignored: did you mean {similar!r}?")
    return found


def grant_hint(grant: CompiledGrant, subscribed: Iterable[TopicMatcher]) -> str | None:
    """Return a hint if a grant to read covers none of the client's matchers.

    The client gets public updates only, for which it needs no token.
    """
    if not grant.subscribe:
        return None
    wanted = list(subscribed)[:MAX_COMPARED]
    granted = grant.subscribe[:MAX_COMPARED]
    if any(_may_meet(one, other) for one in wanted for other in granted):
        return None
    return (
        "it covers none of the matchers, so no private update arrives: "
        f"the client wants {_shown(wanted)}, and may read {_shown(granted)}"
    )


def _may_meet(one: TopicMatcher, other: TopicMatcher) -> bool:
    """Return whether there may be a topic that both matchers match.

    The text before the first wildcard decides; if that is not clear, the result is
    True.
    """
    if WILDCARD in (one.pattern, other.pattern) or "urlpattern" in (one.type, other.type):
        return True
    is_text = [matcher.type == "exact" for matcher in (one, other)]
    if all(is_text):
        return one.pattern == other.pattern
    if any(is_text):
        text, pattern = (one, other) if is_text[0] else (other, one)
        return pattern.match(text.pattern)
    starts = [_start(matcher) for matcher in (one, other)]
    return starts[0].startswith(starts[1]) or starts[1].startswith(starts[0])


def _start(matcher: TopicMatcher) -> str:
    """Return the text that all topics of a pattern begin with, or a part of it."""
    ends = [end for sign in _SIGNS if (end := matcher.pattern.find(sign)) >= 0]
    start = matcher.pattern[: min(ends, default=len(matcher.pattern))]
    return start.rstrip("/.") if matcher.type in ("amqp", "mqtt") else start  # a/# matches a


def _shown(matchers: Sequence[TopicMatcher]) -> str:
    more = f" and {len(matchers) - 1} more" if len(matchers) > 1 else ""
    return f"{shown(matchers[0].pattern)}{more}" if matchers else "nothing"
