"""Sources of keys: a single key, and key sets that a server publishes at a URL."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import gzip
import json
import socket
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID
from joserfc import jwk, jws
from structlog.testing import capture_logs

from hub import ConfigurationError
from hub.auth.keys import REGISTRY, RemoteKeys, TrustedKeys, load_key, open_keys, parse_key_set, read_key, weakness
from hub.development import DEVELOPMENT_KEY
from hub.errors import InvalidToken, KeysUnavailable
from hub.settings.issuers import PUBLIC_KEY_ALGORITHMS, Keys
from tests.hub.signing import ISSUER, RESOURCE, Clock, authorizer, current, detail, settings, sign
from tests.waiting import HANG

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from hub.auth.authorizer import Authorizer

pytestmark = pytest.mark.anyio

EC = jwk.ECKey.generate_key("P-256")
OTHER_EC = jwk.ECKey.generate_key("P-256")
P384 = jwk.ECKey.generate_key("P-384")
RSA = jwk.RSAKey.generate_key(2048)
ED = jwk.OKPKey.generate_key("Ed25519")
X25519 = jwk.OKPKey.generate_key("X25519")
KIB = 1024


def pem(key: Any, private: bool = False) -> str:
    return str(key.as_pem(private=private).decode())


def public(key: Any, **members: Any) -> dict[str, Any]:
    """Return `key` as an entry of a key set."""
    return {**key.as_dict(private=False), **members}


def key_set(*entries: Any) -> bytes:
    return json.dumps({"keys": list(entries)}).encode()


def signed(key: Any, algorithm: str = "ES256", **header: Any) -> str:
    """Return a current token for the hub that `hub_of` makes."""
    return current(detail({"match": "a"}), key=pem(key, private=True), algorithm=algorithm, header=header)


def extract(token: str) -> jws.CompactSignature:
    return jws.extract_compact(token.encode(), registry=REGISTRY)


# -- a server


@dataclass
class KeyServer:
    """A server that answers every request with `answer` once `gate` is open."""

    answer: bytes = b""
    requests: list[str] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    hung_up: asyncio.Event = field(default_factory=asyncio.Event)
    endless: bool = False
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/keys"

    def serve(self, *entries: Any) -> None:
        self.serve_text(key_set(*entries))

    def serve_text(self, text: bytes, status: str = "200 OK", *headers: str) -> None:
        head = [f"HTTP/1.1 {status}", f"Content-Length: {len(text)}", "Connection: close", *headers]
        self.answer = "\r\n".join([*head, "", ""]).encode() + text

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            self.requests.append((await reader.readuntil(b"\r\n\r\n")).decode())
            self.asked.set()
            await self.gate.wait()
            writer.write(self.answer)
            while self.endless:
                writer.write(b" " * 64 * KIB)
                await writer.drain()
        self.hung_up.set()
        writer.close()


@pytest.fixture
async def server() -> AsyncIterator[KeyServer]:
    server = KeyServer()
    server.gate.set()
    listening = await asyncio.start_server(server.handle, "127.0.0.1")
    server.port = listening.sockets[0].getsockname()[1]
    async with listening:
        yield server
        server.gate.set()
        server.endless = False


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def remote(server: KeyServer, clock: Clock) -> AsyncIterator[Callable[..., RemoteKeys]]:
    """Return a function that makes sources of the server's keys; close them at
    the end.
    """
    made = []

    def make(**values: Any) -> RemoteKeys:
        options = {"algorithms": PUBLIC_KEY_ALGORITHMS, "ttl": 300.0, "clock": clock, **values}
        made.append(RemoteKeys("the issuer", server.url, **options))
        return made[-1]

    with capture_logs():
        yield make
    for source in made:
        await source.aclose()


def hub_of(server: KeyServer, clock: Clock, **values: Any) -> Authorizer:
    return authorizer(monotonic=clock, issuers=[{"id": ISSUER, "keys": {"jwks_url": server.url}}], **values)


async def verify(hub: Authorizer, token: str) -> bool:
    """Return whether `token` is valid."""
    try:
        return bool((await hub.verify("publish", token, resource=RESOURCE)).publish)
    except InvalidToken:
        return False


# -- fetching


async def test_n71_v32_a_key_set_is_fetched_at_its_first_use_and_then_cached(server: KeyServer, clock: Clock) -> None:
    server.serve(public(EC, kid="one"))
    hub = hub_of(server, clock, publisher_jwks_url=server.url, publisher_key=None, publisher_algorithm="ES256")
    assert server.requests == []
    token = signed(EC, kid="one")
    for _ in range(3):
        assert await verify(hub, token)
    assert len(server.requests) == 1
    classic = sign({"mercure": {"publish": ["a"]}}, key=pem(EC, private=True), algorithm="ES256")
    assert await verify(hub, classic)  # its key set is fetched separately
    assert len(server.requests) == 2
    await hub.aclose()


async def test_n71_the_request_for_a_key_set_has_these_headers(
    server: KeyServer, remote: Callable[..., RemoteKeys]
) -> None:
    server.serve(public(EC))
    await remote().current(None)
    request = server.requests[0].lower()
    assert request.startswith("get /keys http/1.1\r\n")
    assert "\r\naccept-encoding: identity\r\n" in request
    assert "\r\nauthorization:" not in request
    assert "\r\ncookie:" not in request


async def test_n66_r7_a_key_set_is_fetched_again_after_its_time_and_not_before(server: KeyServer, clock: Clock) -> None:
    server.serve(public(EC, kid="old"))
    hub = hub_of(server, clock, jwks_ttl=100)
    old = signed(EC, kid="old")
    assert await verify(hub, old)
    server.serve(public(OTHER_EC, kid="new"))
    clock.now += 99.9
    assert await verify(hub, old)
    assert len(server.requests) == 1
    clock.now += 0.1
    assert not await verify(hub, old)
    assert await verify(hub, signed(OTHER_EC, kid="new"))
    assert len(server.requests) == 2
    await hub.aclose()


async def test_r88_a_key_is_withdrawn_when_two_fetches_in_a_row_lack_it(server: KeyServer, clock: Clock) -> None:
    server.serve(public(EC, kid="one"))
    hub = hub_of(server, clock, jwks_ttl=30)
    grant = await hub.verify("subscribe", signed(EC, kid="one"), resource=RESOURCE)

    async def fetched(*entries: Any) -> tuple[bool, bool]:
        """Fetch a set; return whether the key counts, and whether one was withdrawn."""
        server.serve(*entries)
        clock.now += 30
        await hub.refresh()
        is_withdrawn = hub.withdrawn.is_set()
        hub.withdrawn.clear()
        return hub.trusts(grant), is_withdrawn

    one, two = public(EC, kid="one"), public(OTHER_EC, kid="two")
    assert await fetched(one, two) == (True, False)
    assert await fetched(two) == (True, False)
    assert await fetched(one, two) == (True, False)  # one machine of several was late
    assert await fetched(two) == (True, False)
    assert await fetched(two) == (False, True)
    assert await fetched(one, two) == (True, False)  # it is back
    # A set that cannot be read is no fetch.
    assert await fetched(two) == (True, False)
    clock.now += 30
    for text, status in ((b"[]", "200 OK"), (b"{}", "500 Internal Server Error")):
        server.serve_text(text, status)
        clock.now += 30
        await hub.refresh()
    assert hub.trusts(grant)
    await hub.aclose()


async def test_another_key_set_withdraws_no_key_before_it_is_fetched(server: KeyServer, clock: Clock) -> None:
    server.serve(public(EC, kid="one"), public(OTHER_EC, kid="two"))
    hub = hub_of(server, clock)
    one, two = [
        await hub.verify("subscribe", signed(key, kid=kid), resource=RESOURCE)
        for key, kid in ((EC, "one"), (OTHER_EC, "two"))
    ]
    moved = [{"id": ISSUER, "keys": {"jwks_url": server.url + "/moved"}}]
    await hub.take_keys(settings(issuers=moved))
    assert [hub.trusts(grant) for grant in (one, two)] == [True, True]
    server.serve(public(EC, kid="one"))
    await hub.refresh()
    assert [hub.trusts(grant) for grant in (one, two)] == [True, False]
    await hub.aclose()


async def test_a_verified_token_is_verified_again_after_the_keys_change(server: KeyServer, clock: Clock) -> None:
    server.serve(public(EC, kid="one"))
    hub = hub_of(server, clock, jwks_ttl=30)
    token = signed(EC, kid="one")
    first = await hub.verify("publish", token, resource=RESOURCE)
    clock.now += 29.9
    assert await hub.verify("publish", token, resource=RESOURCE) is first
    clock.now += 0.1
    second = await hub.verify("publish", token, resource=RESOURCE)  # a new key set with the same keys
    assert second is not first
    server.serve(public(OTHER_EC, kid="two"))
    assert await verify(hub, signed(OTHER_EC, kid="two"))  # the unknown key id makes the hub ask again at once
    assert not await verify(hub, token)  # its key was withdrawn
    await hub.aclose()


async def test_an_old_key_set_is_used_while_no_new_one_can_be_fetched(
    server: KeyServer, clock: Clock, remote: Callable[..., RemoteKeys]
) -> None:
    server.serve(public(EC, kid="one"))
    source = remote()
    keys = await source.current("one")
    server.serve_text(b"", "503 Service Unavailable")
    clock.now += 300
    with capture_logs() as lines:
        assert await source.current("one") is keys
        assert await source.current("one") is keys
        clock.now += 9.9
        assert await source.current("unknown") is keys
    assert len(server.requests) == 2
    assert [(line["log_level"], line["keys"], line["reason"], line["old"]) for line in lines] == [
        ("warning", "the issuer", "ValueError: answered 503", True)
    ]
    assert not source.is_current(keys)
    server.serve(public(OTHER_EC, kid="two"))
    clock.now += 0.1
    assert (await source.current("one")).kids == frozenset({"two"})
    assert len(server.requests) == 3
    clock.now += 299.9
    await source.current("two")
    assert len(server.requests) == 3


async def test_t43_without_any_key_set_the_error_is_not_the_fault_of_the_token(server: KeyServer, clock: Clock) -> None:
    server.serve_text(b"", "500 Oh")
    hub = hub_of(server, clock)
    token = signed(EC)
    with capture_logs():
        for _ in range(2):
            with pytest.raises(KeysUnavailable) as caught:
                await hub.verify("publish", token, resource=RESOURCE)
            assert caught.value.status == 503
            assert caught.value.reason == f"the keys of issuer '{ISSUER}': ValueError: answered 500"
    assert len(server.requests) == 1
    server.serve(public(EC))
    clock.now += 9.9
    with pytest.raises(KeysUnavailable):
        await hub.verify("publish", token, resource=RESOURCE)
    clock.now += 0.1
    assert await verify(hub, token)
    await hub.aclose()


async def test_a_key_server_that_does_not_exist_is_an_error(clock: Clock) -> None:
    async with await asyncio.start_server(lambda *_: None, "127.0.0.1") as gone:
        port = gone.sockets[0].getsockname()[1]
    with capture_logs():
        source = RemoteKeys("x", f"http://127.0.0.1:{port}/", PUBLIC_KEY_ALGORITHMS, ttl=1, clock=clock)
        with pytest.raises(KeysUnavailable, match="temporarily unavailable") as caught:
            await source.current(None)
    assert caught.value.reason.startswith("the keys of x: ConnectError: ")
    await source.aclose()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"", "JSONDecodeError"),
        (b"{", "JSONDecodeError"),
        (b"\xff", "UnicodeDecodeError"),
        (b"[" * 100_000, "RecursionError"),
        (b"[]", "not a key set"),
        (b"{}", "not a key set"),
        (b'{"keys": {}}', "not a key set"),
        (b'{"keys": null}', "not a key set"),
        (key_set(*[{}] * 101), "it has 101 keys; the limit is 100"),
        (key_set(public(EC)) + b" " * 256 * KIB, "larger than 262144 bytes"),
    ],
)
async def test_n71_a_response_that_is_not_a_key_set_is_an_error(
    server: KeyServer, remote: Callable[..., RemoteKeys], text: bytes, told: str
) -> None:
    server.serve_text(text)
    with pytest.raises(KeysUnavailable) as caught:
        await remote().current(None)
    assert told in caught.value.reason


async def test_n71_a_key_set_of_the_largest_size_is_accepted(
    server: KeyServer, remote: Callable[..., RemoteKeys]
) -> None:
    text = key_set(public(EC), *[{}] * 99)
    server.serve_text(text + b" " * (256 * KIB - len(text)))
    keys = await remote().current(None)
    keys.check(extract(signed(EC)))


async def test_n71_a_compressed_key_set_is_not_decompressed(
    server: KeyServer, remote: Callable[..., RemoteKeys]
) -> None:
    packed = gzip.compress(key_set(public(EC)) + b" " * 2**26)
    assert len(packed) < 256 * KIB
    server.serve_text(packed, "200 OK", "Content-Encoding: gzip")
    with pytest.raises(KeysUnavailable) as caught:
        await remote().current(None)
    assert "UnicodeDecodeError" in caught.value.reason


async def test_n71_an_endless_response_is_not_read_forever(
    server: KeyServer, remote: Callable[..., RemoteKeys]
) -> None:
    server.answer, server.endless = b"HTTP/1.1 200 OK\r\n\r\n", True
    with pytest.raises(KeysUnavailable) as caught:
        await remote().current(None)
    assert "larger than" in caught.value.reason
    async with asyncio.timeout(HANG):
        await server.hung_up.wait()


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 Temporary Redirect", "308 Permanent Redirect"])
async def test_n71_redirects_are_not_followed(
    server: KeyServer, remote: Callable[..., RemoteKeys], status: str
) -> None:
    server.serve_text(key_set(public(EC)), status, f"Location: {server.url}")
    with pytest.raises(KeysUnavailable) as caught:
        await remote().current(None)
    assert caught.value.reason.endswith(f"answered {status[:3]}")
    assert len(server.requests) == 1


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"])
async def test_n71_a_server_that_stops_sending_times_out(
    server: KeyServer, remote: Callable[..., RemoteKeys], answer: bytes
) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            writer.write(answer)
            await reader.read()  # until the client closes the connection
        writer.close()

    async with await asyncio.start_server(handle, "127.0.0.1") as stuck:
        server.port = stuck.sockets[0].getsockname()[1]
        with pytest.raises(KeysUnavailable) as caught:
            await remote(timeout=0.05).current(None)
    assert caught.value.reason.endswith("TimeoutError")


# -- concurrent requests


async def test_a_key_set_is_fetched_once_for_all_waiting_requests(
    server: KeyServer, remote: Callable[..., RemoteKeys]
) -> None:
    server.serve(public(EC, kid="one"))
    server.gate.clear()
    source = remote()
    waiting = [asyncio.create_task(source.current(kid)) for kid in [None, "one", "two"] * 10]
    await server.asked.wait()
    await asyncio.sleep(0)
    server.gate.set()
    assert len({id(keys) for keys in await asyncio.gather(*waiting)}) == 1
    assert len(server.requests) == 1


@pytest.mark.parametrize("who", [0, 1, 2])
async def test_a_cancelled_request_does_not_cancel_the_fetch_of_the_others(
    server: KeyServer, remote: Callable[..., RemoteKeys], who: int
) -> None:
    server.serve(public(EC))
    server.gate.clear()
    source = remote()
    waiting = [asyncio.create_task(source.current(None)) for _ in range(3)]
    await server.asked.wait()
    waiting[who].cancel()
    await asyncio.wait([waiting[who]])
    server.gate.set()
    left = await asyncio.gather(*(task for task in waiting if task is not waiting[who]))
    assert left[0] is left[1]
    assert waiting[who].cancelled()
    assert len(server.requests) == 1


async def test_all_waiting_requests_fail_if_the_fetch_fails(
    server: KeyServer, remote: Callable[..., RemoteKeys]
) -> None:
    server.serve_text(b"", "500 Oh")
    server.gate.clear()
    source = remote()
    waiting = [asyncio.create_task(source.current(None)) for _ in range(3)]
    await server.asked.wait()
    server.gate.set()
    assert [type(e) for e in await asyncio.gather(*waiting, return_exceptions=True)] == [KeysUnavailable] * 3
    assert len(server.requests) == 1


async def test_closing_ends_a_fetch_and_its_waiting_requests_fail(
    server: KeyServer, remote: Callable[..., RemoteKeys]
) -> None:
    server.gate.clear()
    source = remote()
    waiting = asyncio.create_task(source.current(None))
    await server.asked.wait()
    await source.aclose()
    assert source._flight is None
    with pytest.raises(KeysUnavailable) as caught:
        await waiting
    assert caught.value.reason == "the keys of the issuer: closed"
    await source.aclose()
    server.serve(public(EC))
    server.gate.set()
    with pytest.raises(KeysUnavailable):
        await source.current(None)
    assert len(server.requests) == 1


# -- the choice of the key


async def test_n66_kid_is_only_a_hint_among_trusted_keys(server: KeyServer, clock: Clock) -> None:
    server.serve(public(EC, kid="one"), public(OTHER_EC, kid="two"), public(RSA))
    hub = hub_of(server, clock)
    for key, algorithm, kid, fine in (
        (EC, "ES256", {"kid": "one"}, True),
        (EC, "ES256", {"kid": "two"}, False),
        (OTHER_EC, "ES256", {"kid": "two"}, True),
        (EC, "ES256", {}, True),  # each key is tried
        (OTHER_EC, "ES256", {}, True),
        (RSA, "RS256", {}, True),
        (RSA, "RS256", {"kid": "one"}, False),
        (jwk.ECKey.generate_key("P-256"), "ES256", {"kid": "one"}, False),
        (jwk.ECKey.generate_key("P-256"), "ES256", {}, False),
    ):
        assert await verify(hub, signed(key, algorithm, **kid)) is fine, (algorithm, kid)
    await hub.aclose()


async def test_n66_keys_that_share_a_kid_are_all_tried(server: KeyServer, clock: Clock) -> None:
    server.serve(public(EC, kid="one"), public(OTHER_EC, kid="one"))
    hub = hub_of(server, clock)
    assert await verify(hub, signed(EC, kid="one"))
    assert await verify(hub, signed(OTHER_EC, kid="one"))
    await hub.aclose()


async def test_n66_an_unknown_kid_causes_one_more_fetch_every_10_s(server: KeyServer, clock: Clock) -> None:
    server.serve(public(EC, kid="one"))
    hub = hub_of(server, clock)
    assert await verify(hub, signed(EC, kid="one"))
    server.serve(public(EC, kid="one"), public(OTHER_EC, kid="two"))
    assert await verify(hub, signed(OTHER_EC, kid="two"))  # the unknown key id makes the hub ask again at once
    assert len(server.requests) == 2
    for n in range(5):
        assert not await verify(hub, signed(OTHER_EC, kid=f"unknown {n}"))
    assert len(server.requests) == 2
    clock.now += 9.9
    assert not await verify(hub, signed(OTHER_EC, kid="unknown"))
    assert len(server.requests) == 2
    clock.now += 0.1
    assert not await verify(hub, signed(OTHER_EC, kid="unknown"))
    assert not await verify(hub, signed(OTHER_EC, kid="unknown"))
    assert len(server.requests) == 3
    await hub.aclose()


async def test_n66_a_key_set_that_was_just_fetched_is_not_fetched_again(
    server: KeyServer, remote: Callable[..., RemoteKeys]
) -> None:
    server.serve(public(EC, kid="one"))
    assert (await remote().current("unknown")).kids == frozenset({"one"})
    assert len(server.requests) == 1


async def test_n66_requests_with_an_unknown_kid_wait_for_the_current_fetch(
    server: KeyServer, remote: Callable[..., RemoteKeys]
) -> None:
    server.serve(public(EC, kid="one"))
    source = remote()
    old = await source.current("one")
    server.serve(public(EC, kid="two"))
    server.gate.clear()
    server.asked.clear()
    first = asyncio.create_task(source.current("two"))
    await server.asked.wait()
    second = asyncio.create_task(source.current("two"))
    assert await source.current("one") is old  # a caller that has its key does not wait
    assert await source.current(None) is old
    server.gate.set()
    assert (await first).kids == (await second).kids == frozenset({"two"})
    assert len(server.requests) == 2


async def test_n66_a_failed_extra_fetch_keeps_the_key_set(
    server: KeyServer, clock: Clock, remote: Callable[..., RemoteKeys]
) -> None:
    server.serve(public(EC, kid="one"))
    source = remote()
    keys = await source.current("one")
    server.serve_text(b"", "500 Oh")
    assert await source.current("two") is keys
    assert source.is_current(keys)
    assert await source.current("two") is keys
    assert len(server.requests) == 2
    clock.now += 10
    assert await source.current("two") is keys
    assert len(server.requests) == 3


async def test_n91_the_log_names_the_missing_key(server: KeyServer, clock: Clock) -> None:
    server.serve(public(EC, kid="one"))
    hub = hub_of(server, clock)
    for token, reason in (
        (signed(EC, kid="two"), f"issuer '{ISSUER}' has no key with kid 'two' for ES256"),
        (signed(RSA, "RS256", kid="one"), f"issuer '{ISSUER}' has no key with kid 'one' for RS256"),
        (signed(RSA, "RS256"), f"issuer '{ISSUER}' has no key for RS256"),
        (signed(OTHER_EC, kid="one"), f"the signature matches no ES256 key of issuer '{ISSUER}'"),
    ):
        with pytest.raises(InvalidToken) as caught:
            await hub.verify("publish", token, resource=RESOURCE)
        assert caught.value.reason == reason
    await hub.aclose()


# -- the keys of a set


def verifies(keys: TrustedKeys, token: str) -> bool:
    try:
        keys.check(extract(token))
    except InvalidToken:
        return False
    return True


def weak_rsa() -> dict[str, Any]:
    """Return a key of 1,024 bits; its modulus need not be a product of primes."""
    return {"kty": "RSA", "e": "AQAB", "n": "w" + "A" * 169 + "E"}


@pytest.mark.parametrize(
    ("entry", "key", "algorithm"),
    [
        (public(EC, use="enc"), EC, "ES256"),
        (public(EC, alg="ES384"), EC, "ES256"),
        (public(EC, key_ops=["encrypt"]), EC, "ES256"),
        (public(RSA, alg="RS512"), RSA, "RS256"),
        (public(RSA, alg="PS256"), RSA, "RS256"),
        (EC.as_dict(private=True), EC, "ES256"),  # anyone could sign with a private key that is published
        (public(EC, kty="RSA"), EC, "ES256"),
        (public(EC, kid=7), EC, "ES256"),
        (public(EC, crv="P-512"), EC, "ES256"),
    ],
)
def test_n65_n66_unsuitable_keys_are_skipped(entry: dict[str, Any], key: Any, algorithm: str) -> None:
    with capture_logs():
        keys = parse_key_set("x", key_set(entry), PUBLIC_KEY_ALGORITHMS)
        both = parse_key_set("x", key_set(entry, public(key)), PUBLIC_KEY_ALGORITHMS)
    assert not verifies(keys, signed(key, algorithm))
    assert verifies(both, signed(key, algorithm))


def test_n66_the_ids_of_a_key_set_are_those_of_its_keys() -> None:
    keys = parse_key_set("x", key_set(public(EC, kid=""), public(RSA, kid="one"), public(ED)), PUBLIC_KEY_ALGORITHMS)
    assert keys.kids == frozenset({"", "one"})
    assert verifies(keys, signed(EC, kid=""))


@pytest.mark.parametrize("members", [{"use": "sig"}, {"alg": "RS256"}, {"key_ops": ["verify"]}, {"new": "member"}])
def test_n65_suitable_keys_are_used(members: dict[str, Any]) -> None:
    keys = parse_key_set("x", key_set(public(RSA, **members)), PUBLIC_KEY_ALGORITHMS)
    assert verifies(keys, signed(RSA, "RS256"))
    assert verifies(keys, signed(RSA, "PS256")) is ("alg" not in members)


@pytest.mark.parametrize(
    "entry",
    [
        None, 7, "x", [], {}, {"kty": "EC"}, {"kty": "AKP", "pub": "x"}, {"kty": []}, {"kty": "EC", "crv": "P-256", "x": "", "y": ""},
        {"kty": "EC", "crv": "P-256", "x": "AAAA", "y": "AAAA"}, {"kty": "RSA", "n": "AQAB", "e": "AQAB"}, {"kty": "RSA", "n": 7, "e": 7},
        {"kty": "OKP", "crv": "Ed25519", "x": "AA"}, {"kty": "OKP", "crv": "Ed25519", "x": "é"}, weak_rsa(), public(X25519),
        {"kty": "oct", "k": "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0"},
    ],
)  # fmt: skip
def test_n71_entries_that_are_not_suitable_keys_are_skipped(entry: Any) -> None:
    keys = parse_key_set("x", key_set(entry, public(EC, kid="one"), entry), PUBLIC_KEY_ALGORITHMS)
    assert verifies(keys, signed(EC, kid="one"))
    assert {id(key) for keys in keys.by_algorithm.values() for key in keys} == {id(keys.by_algorithm["ES256"][0])}


def test_n65_only_allowed_algorithms_are_used() -> None:
    keys = parse_key_set("x", key_set(public(RSA), public(EC), public(ED), public(P384)), ["PS256", "EdDSA", "ES384"])
    assert verifies(keys, signed(RSA, "PS256"))
    assert verifies(keys, signed(ED, "EdDSA"))
    assert verifies(keys, signed(P384, "ES384"))
    for key, algorithm in ((RSA, "RS256"), (EC, "ES256")):
        with pytest.raises(InvalidToken) as caught:
            keys.check(extract(signed(key, algorithm)))
        assert caught.value.reason == f"alg '{algorithm}' is not allowed; x allows PS256, EdDSA, Ed25519, Ed448, ES384"


@pytest.mark.parametrize("alg", [None, "EdDSA"])
@pytest.mark.parametrize("curve", ["Ed25519", "Ed448"])
def test_n65_eddsa_has_a_name_for_each_curve_too(curve: Any, alg: str | None) -> None:
    """RFC 9864.  A key for the name of its curve is for that one only."""
    key = jwk.OKPKey.generate_key(curve)
    other = {"Ed25519": "Ed448", "Ed448": "Ed25519"}[curve]
    members = {} if alg is None else {"alg": alg}
    for keys in (
        parse_key_set("x", key_set(public(key, **members)), PUBLIC_KEY_ALGORITHMS),
        parse_key_set("x", key_set(public(key, **members)), ["EdDSA"]),
        load_key("x", pem(key), "EdDSA"),
    ):
        assert verifies(keys, signed(key, "EdDSA"))
        assert verifies(keys, signed(key, curve))
        assert not keys.by_algorithm.get(other)
    for keys in (
        parse_key_set("x", key_set(public(key, alg=curve)), PUBLIC_KEY_ALGORITHMS),
        parse_key_set("x", key_set(public(key)), [curve]),
        load_key("x", pem(key), curve),
    ):
        assert verifies(keys, signed(key, curve))
        with pytest.raises(InvalidToken):
            keys.check(extract(signed(key, "EdDSA")))
    with pytest.raises(ConfigurationError, match=f"x: this key is for another algorithm than {other}"):
        load_key("x", pem(key), other)


def test_n65_secrets_in_a_set_are_never_used() -> None:
    secret = "secret" * 6
    with capture_logs():
        entry = {"kty": "oct", "k": jwk.OctKey.import_key(secret).as_dict()["k"]}
        keys = parse_key_set("x", key_set(entry), ["HS256", "ES256"])
    assert not verifies(keys, current(key=secret))
    assert keys.by_algorithm == {"HS256": (), "ES256": ()}


def test_a_key_set_without_a_suitable_key_is_logged() -> None:
    with capture_logs() as lines:
        parse_key_set("x", key_set(public(RSA), public(EC, use="enc")), ["ES256"])
        parse_key_set("x", key_set(public(RSA), public(EC)), ["ES256"])
    assert [(line["log_level"], line["keys"], line["count"]) for line in lines] == [("warning", "x", 2)]


# -- a set in a file


def from_file(path: Path, **values: Any) -> Any:
    return open_keys("x", Keys(jwks_url=path.as_uri(), **values), ttl=300, clock=lambda: 0.0)


async def test_r7_a_file_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "a set.json"
    path.write_bytes(key_set(public(EC, kid="one")))
    source = from_file(path)
    path.unlink()
    for kid in (None, "one", "two"):
        keys = await source.current(kid)
        assert verifies(keys, signed(EC, kid="one"))
        assert not verifies(keys, signed(EC, kid="two"))
        assert source.is_current(keys)
    await source.aclose()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "No such file"),
        (b"{", "Expecting"),
        (b"[" * 100_000, "recursion|Stack overflow"),  # as Python up to 3.13, and later ones, call it
        (b"{}", "not a key set"),
        (key_set(), "no key fits ES256"),
        (key_set(public(RSA)), "no key fits ES256"),
        (key_set(public(EC)) + b" " * 256 * KIB, "larger than"),
    ],
)
def test_r7_a_file_without_suitable_keys_prevents_the_start(tmp_path: Path, text: bytes | None, told: str) -> None:
    path = tmp_path / "keys.json"
    if text is not None:
        path.write_bytes(text)
    with capture_logs(), pytest.raises(ConfigurationError, match=told) as caught:
        from_file(path, algorithms=("ES256",))
    assert "keys.json" in str(caught.value)


# -- one key, as a setting gives it


def given(text: str) -> str:
    return read_key("x", text)


def key_refused(text: str) -> str:
    """Return the error for a key; assert that it does not show the key."""
    with pytest.raises(ConfigurationError) as caught:
        given(text)
    assert text.lstrip("@") not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None or caught.value.__suppress_context__
    return str(caught.value)


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_a_key_after_an_at_sign_is_read_from_a_file_without_its_line_end(tmp_path: Path, end: str) -> None:
    (tmp_path / "key.pem").write_bytes(f"é secret\n{end}".encode())
    assert given(f"@{tmp_path}/key.pem") == ("é secret" if not end else "é secret\n")


def test_a_key_file_may_begin_with_a_byte_order_mark_and_be_below_the_home_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key.txt").write_bytes(b"\xef\xbb\xbfsecret\r\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert given(f"@{tmp_path}/key.txt") == given("@~/key.txt") == "secret"


@pytest.mark.parametrize("secret", ["s" * 40 + "\n", " " + "s" * 40, "s" * 40 + "\t"])
def test_white_space_at_an_end_of_a_secret_counts_with_a_warning(secret: str) -> None:
    with capture_logs() as lines:
        keys = load_key("x", secret, None)
    assert verifies(keys, sign({}, key=secret, algorithm="HS256"))
    assert [(line["log_level"], line["key"], "white space" in line["event"]) for line in lines] == [
        ("warning", "x", True)
    ]
    assert secret not in repr(lines)


@pytest.mark.parametrize(("key", "algorithm"), [(EC, "ES256"), (RSA, "RS256"), (ED, "EdDSA")])
def test_a_pem_may_have_its_line_ends_as_two_characters(key: Any, algorithm: str) -> None:
    """As in a variable of a container, or in a file in JSON."""
    for end in ("\\n", "\\r\\n"):
        keys = load_key("x", pem(key).replace("\n", end), algorithm)
        assert verifies(keys, signed(key, algorithm))


def test_the_keys_of_issuers_are_read_from_files_too(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("s" * 32 + "\n")
    keys = open_keys("x", Keys.model_validate({"key": f"@{tmp_path}/key"}), ttl=300, clock=lambda: 0.0)
    assert isinstance(keys, TrustedKeys)
    assert verifies(keys, sign({}, key="s" * 32, algorithm="HS256"))


PATH_AS_KEY = "x: this is the path of a file, not a key; to read the key from the file, put @ before the path"


def test_a_path_without_an_at_sign_is_not_used_as_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret of the hub").write_text("s" * 32)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for path in (
        f"{tmp_path}/secret of the hub",
        "~/secret of the hub",
        "secret of the hub",
        f"{tmp_path}/secret of the hub\n",
    ):
        assert key_refused(path) == PATH_AS_KEY
    for ending in ("pem", "key", "crt", "jwk", "PEM", "key\n"):
        assert key_refused(f"/etc/mercure/keys/publisher.{ending}") == PATH_AS_KEY
        assert key_refused(f"keys/publisher.{ending}") == PATH_AS_KEY


@pytest.mark.parametrize("url", ["file:///run/secrets/publisher", "https://example.com/.well-known/jwks.json"])
def test_a_url_is_not_used_as_a_key(url: str) -> None:
    assert key_refused(url) == "x: this is a URL, not a key; only a key set has a URL: set jwks_url"


def test_a_secret_that_is_not_utf_8_is_refused_and_not_shown() -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_key("x", "\udcff" * 32, None)
    assert str(caught.value) == "x: the key is not UTF-8"
    assert weakness("\udcff" * 32) is None


@pytest.mark.parametrize(
    "secret",
    [
        "/" + "a/b+" * 10 + "==", "a/b" * 20, "/a" * 3_000, "k" * 5_000, "/" + "s" * 31, "nul\0" * 10, "lone \ud800",
        "monkey", "pem", "", "tests", "1://b", pem(EC),
    ],
    ids=lambda secret: secret[:12].encode("ascii", "replace").decode(),
)  # fmt: skip
def test_a_secret_may_contain_slashes_and_have_any_length(secret: str) -> None:
    assert given(secret) == secret


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "No such file or directory"),
        (b"\xff" * 32, "it is not UTF-8"),
        (b"s" * (64 * KIB + 1), "it is larger than 65536 bytes"),
    ],
)
def test_a_key_file_that_cannot_be_read_is_an_error_without_its_path(
    tmp_path: Path, content: bytes | None, reason: str
) -> None:
    if content is not None:
        (tmp_path / "name").write_bytes(content)
    assert key_refused(f"@{tmp_path}/name") == f"x: the file after the @ cannot be read: {reason}"


@pytest.mark.parametrize(
    ("path", "reason"),
    [("/", "Is a directory"), ("n" * 5_000, "File name too long"), ("a\0b", "embedded null byte")],
    ids=["directory", "too long", "NUL"],
)
def test_a_path_that_names_no_file_is_an_error_without_the_path(path: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^x: the file after the @ cannot be read: {reason}$"):
        given(f"@{path}")


# -- one key


def test_v32_a_secret_is_for_hs256_unless_another_algorithm_is_set() -> None:
    secret = "s" * 64
    assert list(load_key("x", secret, None).by_algorithm) == ["HS256"]
    assert list(load_key("x", secret, "HS384").by_algorithm) == ["HS384"]
    for algorithm in ("HS256", "HS384", "HS512"):
        token = sign({}, key=secret, algorithm=algorithm)
        for other in ("HS256", "HS384", "HS512"):
            assert verifies(load_key("x", secret, other), token) is (algorithm == other)


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize("key", [EC, RSA, ED])
def test_t47_n65_a_key_in_pem_is_not_used_as_a_secret(key: Any, private: bool, algorithm: str) -> None:
    for text in (pem(key, private), "\n" + pem(key, private), "-----BEGIN PUBLIC KEY-----\nbroken"):
        with pytest.raises(ConfigurationError, match=f"x: a key in PEM is not a secret, and {algorithm} needs one"):
            load_key("x", text, algorithm)


def test_t47_a_public_key_in_another_format_is_not_used_as_a_secret() -> None:
    ssh = ED.public_key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    with pytest.raises(ConfigurationError, match="x: not a key for HS256"):
        load_key("x", ssh, None)


def test_t47_the_algorithm_of_a_key_in_pem_is_required() -> None:
    with pytest.raises(ConfigurationError, match="x: the key is in PEM, so set its algorithm"):
        load_key("x", pem(EC), None)


@pytest.mark.parametrize(
    ("text", "algorithm"),
    [
        (pem(EC), "RS256"), (pem(RSA), "ES256"), (pem(RSA), "EdDSA"), (pem(EC), "ES384"), (pem(P384), "ES256"), (pem(EC), "EdDSA"),
        (pem(X25519), "EdDSA"), ("not-a-key", "RS256"), ("not-a-key", "EdDSA"), ("", "HS256"), ("", "ES256"), ("é", "ES256"),
        (pem(EC)[:-40], "ES256"), (pem(RSA).replace("M", "N"), "RS256"), ("secret", "none"), ("secret", "HS1"), ("secret", "ES1"),
    ],
)  # fmt: skip
def test_n65_t47_a_key_that_does_not_fit_its_algorithm_prevents_the_start(text: str, algorithm: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^x: ") as caught:
        load_key("x", text, algorithm)
    assert not text or text not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("key", "algorithm", "bits", "least"),
    [("s" * 31, "HS256", 248, 256), ("s" * 47, "HS384", 376, 384), ("s" * 63, "HS512", 504, 512), ("é", None, 16, 256)],
)
def test_v34_a_short_secret_is_accepted_in_development_with_a_warning(
    key: str, algorithm: str | None, bits: int, least: int
) -> None:
    with capture_logs() as lines:
        keys = load_key("x", key, algorithm, dev=True)
    assert [(line["log_level"], line["key"], line["bits"], line["least"]) for line in lines] == [
        ("warning", "x", bits, least)
    ]
    assert key not in repr(lines) + repr(keys)
    with capture_logs() as lines:
        load_key("x", "s" * (least // 8), algorithm)
    assert lines == []


@pytest.mark.parametrize("algorithm", [None, "HS256", "HS384", "HS512"])
@pytest.mark.parametrize(
    ("secret", "wrong"),
    [
        ("!", "shorter than 32 bytes"),
        ("!ChangeMe!", "shorter than 32 bytes"),
        ("s" * 31, "shorter than 32 bytes"),
        ("é" * 15, "shorter than 32 bytes"),
        (" ", "blank"),
        (" \t\n" * 20, "blank"),
    ],
)
def test_v34_a_guessable_secret_is_refused_outside_development(secret: str, wrong: str, algorithm: str | None) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_key("x", secret, algorithm)
    told = f"x: this secret is {wrong}, so it can be guessed; make one: openssl rand -base64 32"
    assert str(caught.value) == told
    with capture_logs() as lines:
        load_key("x", secret, algorithm, dev=True)
    assert secret == " \t\n" * 20 or [line["log_level"] for line in lines] == ["warning"]


@pytest.mark.parametrize("secret", ["s" * 32, "é" * 16, DEVELOPMENT_KEY])
def test_v34_a_secret_of_32_bytes_is_accepted(secret: str) -> None:
    with capture_logs() as lines:
        load_key("x", secret, None)
    assert lines == []


@pytest.mark.parametrize(("key", "algorithm"), [(EC, "ES256"), (RSA, "RS256"), (RSA, "PS512"), (ED, "EdDSA")])
@pytest.mark.parametrize("dev", [False, True])
def test_a_private_key_is_refused_and_not_shown(key: Any, algorithm: str, dev: bool) -> None:
    with pytest.raises(ConfigurationError, match="x: this key is private, and the hub needs the public one") as caught:
        load_key("x", pem(key, private=True), algorithm, dev=dev)
    assert "-----BEGIN" not in str(caught.value)
    load_key("x", pem(key), algorithm)


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize(
    ("key", "algorithm"), [(EC, "ES256"), (RSA, "RS256"), (ED, "EdDSA"), (ED, "HS256"), (ED, None)]
)
def test_t47_a_key_in_json_is_not_used_as_a_secret_and_not_shown(
    key: Any, algorithm: str | None, private: bool
) -> None:
    entry = key.as_dict(private=private)
    for text in (json.dumps(entry), f" {json.dumps({'keys': [entry]})}\n"):
        with pytest.raises(ConfigurationError, match="x: a key in JSON is not a secret") as caught:
            load_key("x", text, algorithm, dev=True)
        assert entry.get("x", "kty") not in str(caught.value)
    load_key("x", json.dumps({"a": "secret that only looks like a key in JSON"}), "HS256")


def test_a_short_rsa_key_is_accepted_with_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        short = jwk.RSAKey.import_key(rsa.generate_private_key(65537, 1024))
    with capture_logs() as lines:
        keys = load_key("x", pem(short), "RS256")
        assert verifies(keys, sign({}, key=pem(short, private=True), algorithm="RS256"))
        assert [(line["bits"], line["least"]) for line in lines] == [(1024, 2048)]
        load_key("x", pem(RSA), "RS256")
        assert len(lines) == 1


def test_v32_a_certificate_is_used_as_a_public_key() -> None:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "x")])
    day = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    certificate = x509.CertificateBuilder(name, name, EC.public_key, 1, day, day + datetime.timedelta(days=1))
    assert EC.private_key is not None
    text = certificate.sign(EC.private_key, hashes.SHA256()).public_bytes(Encoding.PEM).decode()
    keys = load_key("x", text, "ES256")
    assert verifies(keys, signed(EC))


def test_the_repr_of_a_key_does_not_show_it() -> None:
    keys = load_key("x", "s" * 40, None)
    assert repr(keys) == "TrustedKeys(name='x', kids=None, expires=inf)"


# -- proxies of the environment


def test_a_proxy_that_cannot_be_used_prevents_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "socks4://127.0.0.1:9")
    with pytest.raises(ConfigurationError, match=r"^the proxy in HTTPS_PROXY cannot be used: "):
        authorizer(issuers=[{"id": ISSUER, "keys": {"jwks_url": "https://auth.example/keys"}}])


@pytest.mark.anyio
async def test_the_failure_of_a_fetch_names_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as bound:  # and does not listen
        bound.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HTTPS_PROXY", f"http://user:hunter2@127.0.0.1:{bound.getsockname()[1]}")
        keys = RemoteKeys("x", "https://auth.example/keys", ["ES256"], ttl=300, clock=lambda: 0.0)
        with capture_logs() as lines, pytest.raises(KeysUnavailable):
            await keys.current(None)
    await keys.aclose()
    [line] = lines
    assert line["reason"].endswith("; the environment names a proxy for this URL: see HTTPS_PROXY and NO_PROXY")
    assert "hunter2" not in repr(lines)
