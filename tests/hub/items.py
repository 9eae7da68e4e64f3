"""python -m tests.hub.items: write README.md anew, a table of the protocol's items and the tests that hold them.

An item is a rule of the checklist of the protocol, and has a letter and a number.  A test says which ones it holds
with the first words of its name, up to the first word that is no item:

    test_n14_n3_the_parser_is_the_whatwg_s    holds N14 and N3

ITEMS has a title for each, and NOT_HERE the reason for each that no test holds.  A reason that begins with
"partly:" is for what is missing of an item that has tests.
"""

from __future__ import annotations

import ast
import os
import re
from itertools import chain, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

README: Final = Path(__file__).with_name("README.md")
TESTS: Final = README.parents[1]
"""The folder of all tests: those of the library hold items too."""

ITEMS: Final = {
    "Strings": {
        "N1": "a topic has no control and no format characters, by Unicode 17",
        "N2": "nor has a pattern, an id or a type",
        "N3": "bytes that are no UTF-8 once decoded are refused, not replaced",
        "N4": "the first topic is the canonical one; any of them may match",
        "N5": "topics are kept and compared as they came",
    },
    "Hub URL and HTTP": {
        "N6": "another path for the hub moves everything that derives from it",
        "N7": "HTTPS wherever a token travels, and HTTP/2 for streams",
        "N8": "comments keep an idle stream alive",
        "N9": "proxies are told not to buffer a stream",
    },
    "Subscribe request": {
        "N10": "GET subscribes, and so may QUERY, whose parameters are in a body",
        "N11": "that body is a form, and the rules for a query hold for it",
        "N12": "body and query together name the matchers",
        "N13": "the cursor: header before query before body",
        "N14": "the WHATWG's form parser, strict about UTF-8",
        "N15": "match, match_exact and match_urlpattern, in any number and order",
        "N16": "all else that begins with match, in any case, is an error",
        "N17": "a value that is no text or no pattern of its type: 400",
        "N18": "bounds on matchers and on the length of a pattern: 400",
        "N19": "a subscription for each matcher, once",
        "N20": "no matcher at all is an error, unknown parameters are none",
        "N21": "who receives: a matcher hits some topic, and the grant allows",
        "N22": "matchers of a request choose, and never permit",
        "N23": "bounds on connections, of all and of each client: 429",
        "N24": "subscribing without a token, if the operator allows it",
        "N25": "further rules of a hub's own about who may do what",
    },
    "Event stream": {
        "N26": "an event stream, with data, id, event, retry and comments",
        "N27": "every event has an id, an IRI where the hub makes it",
        "N28": "a data: line for each line, also for none; CR, LF, CRLF end one",
        "N29": "no line end or NUL gets into id, event or retry",
        "N30": "the hub may say itself when to come back",
        "N31": "forwarding by WebSub or ActivityPub",
    },
    "Matchers": {
        "N32": "* is every topic, whatever the type",
        "N33": "exact: the same characters, nothing resolved",
        "N34": "urlpattern: URL Patterns relative to the hub URL, minding case",
        "N35": "a topic that is no URL is one that no URL Pattern matches",
        "N36": "no pattern costs more than linear time, or it is cut off",
        "N37": "an unknown matcher type is refused, in requests and in tokens",
        "N38": "further matcher types, each with a bound on its cost",
        "N39": "a matcher is about one topic, and the whole of it",
    },
    "Publish request": {
        "N40": "POST of a form in UTF-8",
        "N41": "at least one topic",
        "N42": "further topic fields are alternates",
        "N43": "each topic is a text that may be one",
        "N44": "topics that resolve to the hub's own path are reserved",
        "N45": "what is no URL reference is not reserved",
        "N46": "examples of reserved topics and of others",
        "N47": "no spelling of a reserved topic gets past, however encoded",
        "N48": "the topic * is refused",
        "N49": "data is any text, and may be missing",
        "N50": "private counts by being there, whatever its value",
        "N51": "which ids a publisher may choose; otherwise the hub makes one",
        "N52": "the type is a text, and mercure is the hub's own",
        "N53": "retry is ASCII digits",
        "N54": "unknown fields do no harm",
        "N55": "success: 200, and the id as plain text",
        "N56": "bounds on body, fields and topics: 413",
        "N57": "publishing without a token in closed networks",
    },
    "Presenting the token": {
        "N58": "Authorization: Bearer, in any case",
        "N59": "a cookie, with a name that can be chosen",
        "N60": "no token in the URL",
        "N61": "the header, and only without one the cookie",
        "N62": "the attributes of the cookie",
        "N63": "publishing with a cookie depends on the origin of the page",
    },
    "Validating the token": {
        "N64": "the typ at+jwt, and no other",
        "N65": "algorithms come from the configuration, and fit their key",
        "N66": "keys that a token brings along are not looked at",
        "N67": "a trusted issuer, and keys of that issuer alone",
        "N68": "exp is needed and kept, nbf is kept",
        "N69": "aud names this hub",
        "N70": "other claims may be missing",
        "N71": "keys from the settings, or from a key set behind a URL",
    },
    "Authorization details": {
        "N72": "details of other types are no matter",
        "N73": "actions: strings, of which two are known",
        "N74": "topics: objects with match and perhaps match_type",
        "N75": "payload: an object",
        "N76": "one wrong detail, and the token is refused",
        "N77": "bounds on details, topics and patterns",
        "N78": "a token without details is valid and grants nothing",
        "N79": "a grant: an action on the topics that a matcher hits",
    },
    "What a token allows": {
        "N80": "publishing, if every topic is granted; else nothing is sent",
        "N81": "a private update, if some topic of it is granted",
        "N82": "a stream ends with its token, or earlier",
        "N83": "the same for what is replayed, by the token of now",
        "N84": "without a token nothing private",
    },
    "Error responses": {
        "N90": "a token is missing: 401, and a challenge without error",
        "N91": "a token is not valid: 401, one code for every cause",
        "N92": "a token does not allow it: 403",
        "N93": "a token is presented in no valid way: 400",
        "N94": "other errors have no challenge; problem documents",
        "N95": "the challenge and its form",
        "N96": "which error comes first",
    },
    "CORS and security headers": {
        "N97": "credentials for the origins listed, and never for *",
        "N98": "headers that pages of other origins may read",
        "N99": "preflight: methods and headers",
    },
    "Reconnection and history": {
        "N105": "where a cursor may be",
        "N106": "replay, then live, with nothing lost or doubled in between",
        "N107": "a cursor, even an empty one, is answered by a header",
        "N108": "which id that header names",
        "N109": "a cursor that the history does not know",
        "N110": "earliest: all that there is",
        "N111": "replay is filtered by the token; only chosen ids can be guessed",
        "N112": "old updates may go",
        "N115": "an id that came twice stands for its earliest entry",
        "N116": "no update is called earliest or #something",
    },
    "Active subscriptions": {
        "N120": "an update when a subscription begins and when it ends",
        "N121": "its topic, below the hub's path",
        "N122": "it is private",
        "N123": "its type is mercure",
        "N124": "its data, an object about the subscription",
        "N125": "subscriber ids are random, and no client chooses one",
        "N126": "the payload of the first detail that fits",
        "N127": "register, then announce; remove, then say so",
        "N128": "these updates are in the history like any others",
    },
    "Subscription API": {
        "N130": "three routes: all, those of a matcher, a single one",
        "N131": "the token grants the path itself",
        "N132": "application/json",
        "N133": "a single subscription; 404 for none",
        "N134": "a collection, which may be empty",
        "N135": "the Link to the hub, with the cursor",
        "N136": "ETag, 304, and what may be cached",
        "N137": "no update falls between the list and its cursor",
        "N138": "pages of a long list, or leaving out what has ended",
        "N139": "routes are cut before they are decoded; bad ones are 400",
        "N140": "announced in the metadata; 404 if off",
    },
    "Metadata and discovery": {
        "N145": "the path of the protected resource metadata",
        "N146": "resource is what tokens have in aud",
        "N147": "authorization_servers",
        "N148": "authorization_details_types_supported",
        "N149": "bearer_methods_supported: the header",
        "N150": "mercure_cookie",
        "N151": "mercure_subscriptions",
        "N152": "mercure_matcher_types_supported",
        "N153": "a hub of both dialects serves it too",
        "N154": "challenges name its absolute URL",
        "N155": "Link headers by which a topic's page leads to its hub",
        "N156": "pages of any origin may read it",
    },
    "Encryption, privacy, limits": {
        "N160": "encryption from end to end",
        "N161": "the limits that the specification names",
        "N162": "publishing once however often it is sent",
        "N163": "no tokens, payloads or private data in the log",
    },
    "Classic: subscribe": {
        "V1": "topic, at least once and not too often",
        "V2": "a subscription for each topic selector",
        "V3": "other parameters do no harm",
        "V4": "topic in the body of a QUERY",
        "V5": "a token that is given must be valid, anonymous or not",
        "V6": "the headers of the stream, and its first bytes",
    },
    "Classic: topic selectors": {
        "V10": "everything, the topic itself, or a template, in that order",
        "V11": "what is a template, and what stays a plain string",
        "V12": "what a template matches, expression by expression",
        "V13": "no template is matched by backtracking",
        "V14": "public tables of templates and expansions",
    },
    "Classic: publish": {
        "V20": "the same fields, with the same meaning",
        "V21": "what is refused: the current rules",
        "V22": "200 and the id",
        "V23": "mercure.publish allows every topic, or it is refused",
        "V24": "version 7: public updates to topics that are not granted",
    },
    "Classic: tokens": {
        "V30": "any signed token with a mercure claim, or the namespaced one",
        "V31": "exp and nbf are kept, with fractions; no other claim matters",
        "V32": "keys for publishers and for subscribers",
        "V33": "up to 1,000 strings in a claim",
        "V34": "the keys that examples use, and short ones",
        "V35": "secrets of any length, exact algorithms, base64url unpadded",
    },
    "Classic: presenting the token": {
        "V40": "header, then query parameter, then cookie",
        "V41": "one header, Bearer",
        "V42": "the authorization parameter, which no log shows",
        "V43": "publishing with the cookie depends on the origin",
        "V44": "the chosen cookie before mercureAuthorization",
        "V45": "the cookie as Symfony sets it",
    },
    "Classic: delivery and reconnection": {
        "V50": "selector and grant may hit different topics of an update",
        "V51": "the cursor as lastEventID, in the spellings of its clients",
        "V52": "the answer as Last-Event-ID",
        "V53": "earliest, and ids that are not known",
        "V54": "a stream ends with its token",
        "V55": "the same frames, and ids that are URNs",
    },
    "Classic: active subscriptions": {
        "V60": "topic and id of the update: selector and subscriber",
        "V61": "JSON-LD, private, and no type, so that onmessage sees it",
        "V62": "registered, then announced, as in the current dialect",
        "V63": "the API, with lastEventID in its documents",
        "V64": "a selector of the token grants the path",
        "V65": "the terms of the JSON-LD context",
        "V66": "attributes of the discovery Link in old clients",
    },
    "Classic: what the reference's compatibility mode does": {
        "V70": "a setting for version 7 or 8",
        "V71": "both kinds in a request, and a type without a name on the wire",
        "V72": "one claim or the other, and relaxed checks for all tokens",
        "V73": "the payload: of a detail, or of the mercure claim",
        "V74": "routes of two and of one segment",
        "V75": "what old clients lose there",
        "V76": "keys of classic tokens go with the classic dialect only",
        "V77": "how far clients have moved to the current protocol",
    },
    "Classic: both dialects in one hub": {
        "V80": "a subscription's dialect is in the name of its parameter",
        "V81": "a token's is in its typ; at+jwt is never checked less",
        "V82": "tokens of either grant subscriptions of the other",
        "V83": "match_uritemplate, for templates without classic tokens",
        "V84": "documents are in the dialect of the subscription",
        "V85": "cursors in all spellings, in one order",
        "V86": "which cookies and parameters are read for a token",
        "V87": "a topic named like a matcher type, on a route of two segments",
        "V88": "switched off, topic is refused and its claim ignored",
        "V89": "topic=* and match=* are the same updates",
    },
    "Operations: options": {
        "R1": "anonymous, subscriptions, debugger: off",
        "R2": "seconds of a connection, of a write, between heartbeats",
        "R3": "the bytes of a body",
        "R4": "the name of the cookie",
        "R5": "origins that may read, origins that may publish, and wildcards",
        "R6": "the URLs of a hub, and its resource identifier",
        "R7": "issuers, and the keys of their roles",
        "R8": "names of 0.x options",
        "R9": "the sizes of caches",
        "R10": "directives for version and history",
        "R11": "environment variables of the image",
        "R12": "no hub that nobody could publish to, or read from",
        "R13": "a command that makes tokens",
    },
    "Operations: limits": {
        "R14": "the defaults of all bounds",
    },
    "Operations: HTTP surface": {
        "R20": "the headers and the first bytes of a stream",
        "R21": "the order of fields in an event; LF",
        "R22": "ids are UUIDs as URNs",
        "R23": "which routes there are; 405 and 503",
        "R24": "security headers on every response",
        "R25": "what CORS allows",
        "R26": "a subscription API that is open without keys",
        "R27": "a page at the root, robots.txt, healthz",
        "R28": "compression, HTTP/2 and 3, certificates",
        "R29": "the debugger, and a playground",
    },
    "Operations: life of a subscriber": {
        "R30": "a slow reader holds nobody up and loses nothing unawares",
        "R31": "what comes live during the replay follows it",
        "R32": "a write that does not end",
        "R33": "connections end at a random time before their deadline",
        "R34": "an update puts the heartbeat off",
        "R35": "the token's end counts without a lifetime too",
        "R36": "a shutdown that lets streams run out",
        "R37": "what happens at the end: removed, announced, logged",
    },
    "Operations: histories": {
        "R40": "one without a history",
        "R41": "one that keeps it in a file",
        "R42": "registering and the replay's bounds under one lock",
        "R43": "an update of many topics is one record",
        "R44": "the subscribers of a key as a bitmap that is extended when asked",
        "R45": "a cache of matches",
    },
    "Operations: observability": {
        "R50": "metrics",
        "R51": "health endpoints",
        "R52": "traces",
        "R53": "what is logged, and at which level",
    },
    "Operations: packaging": {
        "R60": "a container image",
        "R61": "a Helm chart",
        "R62": "how to set up a proxy",
    },
    "Operations: traps of the stack": {
        "R70": "Starlette replaces bytes that are no UTF-8",
        "R71": "Starlette decodes the path",
        "R72": "sse-starlette's pings, line ends and handling of signals",
        "R73": "an event is one chunk",
        "R74": "uvicorn's bounds on a request's head, and its methods",
        "R75": "Python's $, digits and lines are others than the protocol's",
        "R76": "several processes are several hubs without a shared log",
        "R77": "ids of any Unicode in headers",
    },
    "Scenarios: hardening": {
        "T20": "an id with DEL, a type with C1, an id that is no UTF-8",
        "T21": "a topic with NUL is refused before anything matches it",
        "T22": "a publish body over the limit: 413",
        "T23": "a QUERY body over the limit: 413",
        "T24": "a limit of 0 is none",
        "T25": "what is told of a bad URL Pattern: nothing of the inside",
        "T26": "compiled patterns of two hubs with different URLs are not mixed",
        "T27": "matchers set by a program, and what was derived from them",
        "T28": "a foreign detail of another shape beside a Mercure one",
        "T29": "details with an unknown type or null refuse the token",
        "T30": "an empty match refuses the token",
        "T31": "payloads: none anywhere, and one to choose",
        "T32": "a hub without a resource identifier checks no empty audience",
        "T33": "a resource identifier that is no absolute URL: no start",
        "T34": "format characters are refused, Arabic letters are fine",
    },
    "Scenarios: matching": {
        "T35": "reserved topics, and what their escapes decode to",
        "T36": "URL Patterns: absolute, relative, with names, and no URL",
        "T37": "the inner type of classic selectors cannot be named",
        "T38": "* in each type",
        "T39": "one matcher or one byte too many, and other names",
    },
    "Scenarios: tokens": {
        "T40": "two headers, a short one, another scheme",
        "T41": "bearer in lower case",
        "T42": "tokens in the URL are no tokens in the current dialect",
        "T43": "every way in which a current token is wrong, and typ in any case",
        "T44": "issuers do not share keys, and a role without keys is refused",
        "T45": "publishing with a cookie: Origin, Referer, neither, wildcards",
        "T46": "the four challenges, literally",
        "T47": "public keys with HMAC, or without an algorithm: no start",
        "T48": "the audience by host, and 421 for another",
    },
    "Scenarios: publish": {
        "T50": "no topic, another content type, bad retry, too many of things",
        "T51": "an alternate that is not granted, and nothing is sent",
        "T52": "the id that the hub makes is the one that arrives",
        "T53": "an update without data",
        "T54": "ids and types that are refused",
        "T55": "a history that fails: 500",
    },
    "Scenarios: subscribe": {
        "T60": "no matcher: 400",
        "T61": "QUERY: body, body and query, and where the cursor is",
        "T62": "private updates, granted by an alternate topic too",
        "T63": "replay: by header, by parameter, earliest, unknown, empty",
        "T64": "the bytes of a heartbeat",
        "T65": "ended with the token, without a lifetime too",
        "T66": "a deadline that is nearer than its margin",
        "T67": "shutdown: streams run out, or end at once",
        "T68": "a registration that fails: 503, and nobody is announced",
        "T69": "a subscriber sees itself arrive",
        "T70": "a client that does not read, and a publisher that does not wait",
        "T71": "updates during a replay, from many publishers",
    },
    "Scenarios: subscription API": {
        "T75": "who gets 401, 403 or an answer",
        "T76": "the query does not count for the grant",
        "T77": "ETags and what is escaped in them",
        "T78": "the Link, literally",
        "T79": "the payload of the first detail that matches",
        "T80": "patterns with + : ? {} and spaces, there and back",
        "T81": "classic routes, and 404",
    },
    "Scenarios: histories": {
        "T85": "how many updates stay when old ones go",
        "T86": "the last id after a restart",
        "T87": "a history that was closed",
        "T88": "a key of several topics, whatever their order",
    },
    "Scenarios: from end to end": {
        "T90": "delivery, the API, and presence by URL Pattern",
        "T91": "measurements of the subscriber list",
        "T92": "tables of our own, from RFC 6570 and the URL Pattern standard",
        "T93": "everything with the classic dialect and without",
    },
}  # fmt: skip

NOT_HERE: Final = {
    "N7": "for the proxy in front, which has the certificates; the hub speaks HTTP/1.1",
    "N25": "a permission that is not used: tokens alone decide",
    "N31": "an option that is not there: readers come to the hub",
    "N57": "an option that is not there: whoever publishes over HTTP has a token",
    "N62": "partly: for whoever sets the cookie; the debugger's page does so by script, which cannot say HttpOnly",
    "N71": "partly: issuers are not asked where their keys are, and tokens are not bound to a client (DPoP, mTLS)",
    "N138": "a permission that is not used: a collection is whole",
    "N155": "for the publisher, whose pages name the hub; the hub's own Link is N135",
    "N160": "between publisher and subscriber; that data arrives as it was sent is N28 and N49",
    "N161": "a list of what has items of its own: N18, N23, N56 and N77",
    "N162": "an option that is not there: an id may come twice (N115)",
    "V24": "version 7 is not spoken, so that what is public has to be granted too",
    "V45": "partly: for the application, which sets it",
    "V66": "for the publisher, as N155",
    "V70": "the reference's setting; ours is V88, without version 7",
    "V72": "not copied, as it relaxes the checks of current tokens; ours is V81",
    "V75": "faults of the reference; what old clients need is V51, V52, V61 and V63",
    "V77": "no rule, but how things were in 2026",
    "R2": "partly: no time for a write, as a slow reader costs one pending write and then reads on in the log",
    "R8": "names of the reference's configuration",
    "R10": "names of the reference's configuration",
    "R11": "names of the reference's image; ours are HUB_ and the name of a setting",
    "R26": "not copied: the subscription API always asks for a token (N131)",
    "R27": "for the site that the hub is part of; of its root the hub uses at most /, for the debugger",
    "R28": "for the proxy in front, as N7",
    "R29": "partly: no playground",
    "R40": "no history is without a history; how long the one in memory is, settings say",
    "R42": "tested as N106: a subscriber is a place in the log, and nothing is registered under a lock",
    "R50": "not yet: comes with operations",
    "R51": "partly: at the hub's own address, and not on a listener of their own",
    "R52": "not yet: comes with operations",
    "R60": "not yet: comes with packaging",
    "R61": "not yet: comes with packaging",
    "R62": "advice for whoever runs the proxy; the hub's part is N9 and R34",
    "T27": "cannot happen: the matchers of a subscriber do not change",
    "T88": "the reference's way; here each topic is a key of its own, and bitmaps are joined",
    "T91": "measured in bench/, not tested",
}

_ITEM: Final = re.compile(r"[nvrt][0-9]+")
_LISTED: Final = 3
"""Tests of an item that a file's cell tells by name; of more it tells how many."""

_INTRODUCTION: Final = """\
# The tests of the hub

One file a module of `hub/`, and `test_items.py`, which keeps this page true.

The protocol that the hub speaks is written down as a checklist of numbered items: `N` is the current protocol, `V` the
classic one, `R` how a hub is run, and `T` scenarios that are worth a test. A test begins with the items that it holds,
as in `test_n14_n3_the_parser_is_the_whatwg_s`. Tests without an item are about what is ours alone.

The tables say which tests hold which item, and for the others why not. They are made from the names of the tests, by
`python -m tests.hub.items`, to be run when a name has changed; the titles and the reasons are in `items.py`.
`grep -rn 'def test_.*n14_' tests` finds the tests of N14.
"""


class Holder(NamedTuple):
    """A test that holds items: the file that it is in, and its name."""

    path: Path
    name: str

    @property
    def sentence(self) -> str:
        """What it says after its items.

        >>> Holder(Path("test_protocol.py"), "test_n14_n3_the_parser_is_the_whatwg_s").sentence
        "the parser is the whatwg's"
        """
        words = self.name.split("_")[1 + len(items_in(self.name)) :]
        return re.sub(r" s\b", "'s", " ".join(words))


Held: TypeAlias = "Mapping[str, list[Holder]]"
"""Item -> its tests, by file and line."""


def titles() -> dict[str, str]:
    """Item -> title, of all sections."""
    return dict(chain.from_iterable(section.items() for section in ITEMS.values()))


def items_in(name: str) -> list[str]:
    """The items that the name of a test begins with.

    >>> items_in("test_n14_n3_bytes_of_v4")
    ['N14', 'N3']
    """
    return [word.upper() for word in takewhile(_ITEM.fullmatch, name.split("_")[1:])]


def find_tests(folder: Path) -> dict[str, list[Holder]]:
    """The tests of each item, in all `test_*.py` of `folder` and below; nothing is imported.

    Raises LookupError where a test names an item that does not exist.
    """
    held: dict[str, list[Holder]] = {item: [] for item in titles()}
    for path in sorted(folder.rglob("test_*.py")):
        for name in _test_names(ast.parse(path.read_text("utf-8"), path)):
            for item in dict.fromkeys(items_in(name)):
                if item not in held:
                    raise LookupError(f"{path}: {name}: there is no item {item}")
                held[item].append(Holder(path, name))
    return held


def _test_names(body: ast.Module | ast.ClassDef) -> Iterator[str]:
    """In the order of the file, methods too."""
    for node in body.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node.name
        elif isinstance(node, ast.ClassDef):
            yield from _test_names(node)


def missing(held: Held) -> list[str]:
    """The items that have neither a test nor a reason for having none."""
    return [item for item, tests in held.items() if not tests and (item not in NOT_HERE or _is_partly(item))]


def contradictory(held: Held) -> list[str]:
    """The items that have tests, and a reason for having none."""
    return [item for item, tests in held.items() if tests and item in NOT_HERE and not _is_partly(item)]


def _is_partly(item: str) -> bool:
    return NOT_HERE[item].startswith("partly:")


def render(held: Held) -> str:
    """The text of README.md."""
    return _INTRODUCTION + "".join(chain.from_iterable(_section(title, held) for title in ITEMS))


def _section(title: str, held: Held) -> Iterator[str]:
    yield f"\n## {title}\n\n| item | what | tests |\n|---|---|---|\n"
    for item, what in ITEMS[title].items():
        lines = [*_tests(held[item])]
        if item in NOT_HERE:
            lines.append(NOT_HERE[item] if _is_partly(item) else f"not here: {NOT_HERE[item]}")
        if item in missing(held):
            lines.append("**missing**")
        yield f"| {item} | {_escaped(what)} | {'<br>'.join(map(_escaped, lines))} |\n"


def _tests(tests: Iterable[Holder]) -> Iterator[str]:
    """A line for each file."""
    by_path: dict[Path, list[Holder]] = {}
    for test in tests:
        by_path.setdefault(test.path, []).append(test)
    for path, those in by_path.items():
        place = Path(os.path.relpath(path, README.parent)).as_posix()
        told = "; ".join(test.sentence for test in those) if len(those) <= _LISTED else f"{len(those)} tests"
        yield f"[{path.name}]({place}): {told}"


def _escaped(text: str) -> str:
    """`text` as Markdown takes it in a table: `*` and `|` are themselves."""
    return text.replace("|", r"\|").replace("*", r"\*") if not text.startswith("**") else text


def summary(held: Held) -> str:
    lacking = missing(held)
    counts = (
        f"{len(held)} items",
        f"{sum(map(bool, held.values()))} held by tests",
        f"{sum(item in NOT_HERE and not _is_partly(item) for item in held)} not here",
        f"{len(lacking)} missing",
    )
    return ", ".join(counts) + (f": {' '.join(lacking)}" if lacking else "")


def main() -> None:
    held = find_tests(TESTS)
    README.write_text(render(held), "utf-8")
    print(summary(held))


if __name__ == "__main__":
    main()
