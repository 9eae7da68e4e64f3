"""The keys that verify tokens, and where they come from (N65–N67, N71, V32).

    a secret, or a public key in PEM    one key, with one algorithm
    @/run/secrets/key                   the same, in a file, read once, at start
    the key before it                   the same; only while a key is replaced
    file:///keys.json                   a key set (RFC 7517), read once, at start
    https://example.com/keys            a key set, fetched when it is first needed

A fetched set is current for `ttl` seconds.  After that it is still used if it cannot be
fetched again:

    fetched        ttl is over    a fetch fails       10 s later: fetched
    |--- current ---|------------ the old set is used ------------|--- current --- …

The `kid` of a token selects among trusted keys.  The hub never uses a key that a token
contains or links to (N66).  If a set lacks the `kid`, the set is fetched again, because
keys change: at most every 10 s, whatever tokens clients send.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import sys
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol, get_args
from urllib.parse import urlsplit
from urllib.request import url2pathname

import httpx2
import structlog
from joserfc import jwk, jws
from joserfc.errors import JoseError, SecurityWarning

from hub.errors import ConfigurationError, InvalidToken, KeysUnavailable
from hub.proxies import hint_at_proxy, usable_proxies
from hub.settings.issuers import Algorithm
from hub.settings.secret_files import read_bounded, read_secret
from skipfilter.text import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from joserfc.jwa import JWSAlgModel

    from hub.settings.issuers import Keys

log = structlog.stdlib.get_logger("hub")

ALGORITHMS: Final[tuple[str, ...]] = get_args(Algorithm)
"""All algorithms that the settings may name."""

_MAX_KEY_BYTES: Final = 64 * 1024
_KEY_FILE_ENDINGS: Final = (".pem", ".key", ".crt", ".jwk")
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_MAX_SET_BYTES: Final = 256 * 1024
_MAX_SET_KEYS: Final = 100
_FETCH_TIMEOUT_SECONDS: Final = 5.0
_FETCH_PAUSE_SECONDS: Final = 10.0  # between two fetches that a client can cause
_KEY_TYPES: Final[dict[str, type[jwk.Key]]] = {
    "HS": jwk.OctKey,
    "RS": jwk.RSAKey,
    "PS": jwk.RSAKey,
    "ES": jwk.ECKey,
    "Ed": jwk.OKPKey,
}
_PUBLIC_KEY_TYPES: Final = ("RSA", "EC", "OKP")
_SIGNING_CURVES: Final = ("Ed25519", "Ed448")
_MIN_RSA_BITS: Final = 2048  # RFC 7518, 3.3
_MIN_SECRET_BYTES: Final = 32


class _Registry(jws.JWSRegistry):
    """The algorithms and header fields that joserfc accepts here.

    Unknown header fields are ignored, as RFC 7515 requires.  The parts of a token have
    no limits of their own, because the length of the token has one.
    """

    max_header_length = max_payload_length = max_signature_length = sys.maxsize

    def get_alg(self, name: str) -> JWSAlgModel:
        # joserfc would warn with every token that EdDSA has a newer name.
        return self.algorithms[name]


REGISTRY: Final = _Registry(algorithms=ALGORITHMS, strict_check_header=False)
"""The registry for signing and for verifying."""


class KeySource(Protocol):
    """A source of the keys for one role."""

    async def current(self, kid: str | None) -> TrustedKeys:
        """Return the current keys.

        If they are out of date, or none of them has the id `kid`, the source may fetch
        them first.  Raises KeysUnavailable if it has never had any keys.
        """

    def is_current(self, keys: TrustedKeys) -> bool:
        """Whether `keys` are the current keys, so that no fetch is needed."""

    def prints(self) -> frozenset[str] | None:
        """Return the fingerprints of all keys that are not withdrawn, as
        `TrustedKeys.check` returns them; None while they are unknown.
        """

    async def aclose(self) -> None:
        """Stop fetching, and close the connections."""


@dataclass(frozen=True, slots=True, eq=False)
class TrustedKeys:
    """The keys of one role at one time.

    Keys that never change are also their own source.
    """

    name: str
    """The name of these keys in the log."""
    by_algorithm: Mapping[str, tuple[jwk.Key, ...]] = field(repr=False)
    """The keys that fit each allowed algorithm."""
    kids: frozenset[str] | None = None
    """The ids by which a token can select keys; None for a key that is not in a set."""
    expires: float = math.inf
    """When a source should fetch the keys again, by its clock."""
    _prints: dict[int, str] = field(default_factory=dict, init=False, repr=False)  # by the id of a key

    def check(self, token: jws.CompactSignature) -> str:
        """Return the fingerprint of the key that signed `token`, with its algorithm.

        Raises InvalidToken if none did.  The caller must have checked the header of the
        token.
        """
        header = token.headers()
        algorithm, kid = header["alg"], header.get("kid")
        if algorithm not in self.by_algorithm:
            raise InvalidToken(
                f"alg {shown(algorithm)} is not allowed; {self.name} allows {', '.join(self.by_algorithm)}"
            )
        # A kid selects among the keys of a set.  Without one, all that fit are tried.
        keys = self.by_algorithm[algorithm]
        if self.kids is not None and kid is not None:
            keys = tuple(key for key in keys if key.kid == kid)
        if not keys:
            named = "" if kid is None else f"with kid {shown(kid)} "
            raise InvalidToken(f"{self.name} has no key {named}for {algorithm}")
        for key in keys:
            if jws.validate_compact(token, key, registry=REGISTRY):
                return self._print(algorithm, key)
        raise InvalidToken(f"the signature matches no {algorithm} key of {self.name}")

    def _print(self, algorithm: str, key: jwk.Key) -> str:
        found = self._prints.get(id(key))
        if found is None:
            found = self._prints[id(key)] = key.thumbprint()
        return f"{algorithm} {found}"

    def prints(self) -> frozenset[str]:
        """Return the fingerprints of all keys."""
        return frozenset(self._print(name, key) for name, keys in self.by_algorithm.items() for key in keys)

    async def current(self, kid: str | None) -> TrustedKeys:
        """Return these keys."""
        return self

    def is_current(self, keys: TrustedKeys) -> bool:
        """Whether `keys` are these keys."""
        return keys is self

    async def aclose(self) -> None:
        """Do nothing: there is nothing to close."""


def open_keys(
    name: str,
    keys: Keys,
    *,
    ttl: float,
    clock: Callable[[], float],
    dev: bool = False,
    fetched: Callable[[], None] = lambda: None,
) -> KeySource:
    """Return the source that `keys` describes.

    `name` is its name in messages, and `ttl` is how many seconds a fetched key set is
    current, by `clock`.  In development (`dev`), a secret may be weak.  `fetched` is
    called after each fetch of a whole set.

    Raises ConfigurationError if there is no key, or if a key does not fit.
    """
    if keys.key is not None:
        newest = load_key(name, read_key(name, keys.key), keys.algorithm, dev=dev)
        name_of_old = f"{name}_old" if name.endswith("_key") else f"{name}, old_key"
        text = read_key(name_of_old, keys.old_key or "")
        if not text.strip():
            return newest
        old = load_key(name_of_old, text, keys.algorithm, dev=dev)
        both = {each: (*trusted, *old.by_algorithm.get(each, ())) for each, trusted in newest.by_algorithm.items()}
        return TrustedKeys(name, both)
    assert keys.jwks_url is not None
    if keys.jwks_url.startswith("file:"):
        return _read_key_set(name, keys.jwks_url, keys.algorithms)
    return RemoteKeys(name, keys.jwks_url, keys.algorithms, ttl=ttl, clock=clock, fetched=fetched)


# -- one key


def read_key(name: str, value: str) -> str:
    """Return the text of the key that `value` gives.

    `value` is the key itself, or @ and the path of a file with the key.  One line end
    at the end of the file does not count.

    Raises ConfigurationError if `value` names a file without the @, if it is a URL, or
    if the file cannot be read.  The message has `name`, and never `value`, which may be
    a secret.
    """
    if not value.startswith("@"):
        # A path must not become the secret: it can be guessed.  A secret in base64 may
        # contain slashes, and even begin with one.
        path = value.strip()
        if _is_file(path) or path.lower().endswith(_KEY_FILE_ENDINGS):
            raise ConfigurationError(
                f"{name}: this is the path of a file, not a key; to read the key from the file, put @ before the path"
            )
        if _URL.match(path):
            raise ConfigurationError(f"{name}: this is a URL, not a key; only a key set has a URL: set jwks_url")
        return value
    try:
        return read_secret(value[1:], _MAX_KEY_BYTES)
    # The text of an OSError has the path, and that of a UnicodeError a byte of the key.
    except OSError as error:
        reason = error.strerror
    except UnicodeError:
        reason = "it is not UTF-8"
    except ValueError as error:
        reason = str(error)
    raise ConfigurationError(f"{name}: the file after the @ cannot be read: {reason}")


def _is_file(path: str) -> bool:
    """Return whether a path names a file; False if it is too long for a name."""
    path = os.path.expanduser(path)
    return os.path.exists(path) and not os.path.isdir(path)


def weakness(secret: str) -> str | None:
    """Return why a hub refuses a secret, or None if it accepts the secret.

    A hub in development mode accepts it anyway.  A secret must be as long as the output
    of HS256 (RFC 7518, 3.2).
    """
    if not secret.strip():
        wrong = "blank"
    elif len(secret.encode("utf-8", "surrogatepass")) < _MIN_SECRET_BYTES:
        wrong = f"shorter than {_MIN_SECRET_BYTES} bytes"
    else:
        return None
    return f"this secret is {wrong}, so it can be guessed; make one: openssl rand -base64 32"


def load_key(name: str, text: str, algorithm: str | None, *, dev: bool = False) -> TrustedKeys:
    """Return the key in `text`, a secret or a public key in PEM.

    In development (`dev`), a weak secret is accepted.  A short key causes a warning
    with `name` (V34).

    Raises ConfigurationError if the key is private, if the secret is weak, or if the
    key does not fit the algorithm.
    """
    key, algorithm = import_key(name, text, algorithm)
    if isinstance(key, jwk.OctKey):
        if not dev and (reason := weakness(text)):
            raise ConfigurationError(f"{name}: {reason}")
        if "" != text.strip() != text:
            log.warning("this secret begins or ends with white space, which is a part of it", key=name)
    elif key.is_private:
        raise ConfigurationError(
            f"{name}: this key is private, and the hub needs the public one; "
            "make it with: openssl pkey -in private.pem -pubout"
        )
    bits, least = _strength(key, algorithm)
    if bits < least:
        log.warning("this key is short, so it can be guessed", key=name, bits=bits, least=least)
    return TrustedKeys(name, {each: (key,) for each in _names(algorithm) if _fits(key, each)})


def import_key(name: str, text: str, algorithm: str | None) -> tuple[jwk.Key, str]:
    """Return the key in `text`, and its algorithm; HS256 if no algorithm is given.

    Raises ConfigurationError if the key does not fit the algorithm.  A public key is
    never accepted as a secret, because anyone may know it (T47).
    """
    # First the errors that have a message of their own.
    is_pem = "-----BEGIN " in text
    if algorithm is None and is_pem:
        raise ConfigurationError(f"{name}: the key is in PEM, so set its algorithm")
    algorithm = algorithm or "HS256"
    if algorithm not in ALGORITHMS:
        raise ConfigurationError(f"{name}: algorithm {shown(algorithm)} is none of {', '.join(ALGORITHMS)}")
    if algorithm.startswith("HS") and is_pem:
        raise ConfigurationError(f"{name}: a key in PEM is not a secret, and {algorithm} needs one")
    if not text:
        raise ConfigurationError(f"{name}: the key is empty")
    if is_pem:
        text = text.replace("\\r", "").replace("\\n", "\n")  # a variable in a file often has its lines so
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:  # a lone surrogate stands for a byte that is not UTF-8
        raise ConfigurationError(f"{name}: the key is not UTF-8") from None
    if _is_jwk(text):
        raise ConfigurationError(
            f"{name}: a key in JSON is not a secret, and not a key in PEM; put a public key into a JWK Set in a file, "
            "and set jwks_url to the URL of the file"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SecurityWarning)
            key = _KEY_TYPES[algorithm[:2]].import_key(text)
    except Exception:
        # joserfc raises many classes.  Their texts are not used, because they may
        # contain the key.
        needed = "this is a public key, not a secret" if algorithm.startswith("HS") else "it needs a key in PEM"
        raise ConfigurationError(f"{name}: not a key for {algorithm}: {needed}") from None
    if not _fits(key, algorithm):
        raise ConfigurationError(f"{name}: this key is for another algorithm than {algorithm}")
    return key, algorithm


def _strength(key: jwk.Key, algorithm: str) -> tuple[int, int]:
    """Return the bits of a key, and the minimum for it (RFC 7518, 3.2 and 3.3).

    Both are 0 for a key on a curve.
    """
    if isinstance(key, jwk.OctKey):
        return 8 * len(key.raw_value), int(algorithm[2:])
    return (key.raw_value.key_size, _MIN_RSA_BITS) if isinstance(key, jwk.RSAKey) else (0, 0)


def _is_jwk(text: str) -> bool:
    """Whether `text` is a key or a key set in JSON.

    Such a text must not be accepted as a secret, because it may be public (T47).
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(document, dict) and not document.keys().isdisjoint(("kty", "keys"))


def _names(algorithm: str) -> tuple[str, ...]:
    """Return the names of an algorithm in tokens: EdDSA has one for each curve, too
    (RFC 9864).
    """
    return (algorithm, *_SIGNING_CURVES) if algorithm == "EdDSA" else (algorithm,)


def _fits(key: jwk.Key, algorithm: str) -> bool:
    """Whether `key` fits `algorithm`, by its type, curve, use, alg and key_ops."""
    try:
        REGISTRY.get_alg(algorithm).check_key(key)
        key.check_key_op("verify")
    except JoseError:
        return False
    return not isinstance(key, jwk.OKPKey) or key.curve_name in _SIGNING_CURVES


# -- key sets


def parse_key_set(name: str, text: bytes, algorithms: Iterable[str], *, expires: float = math.inf) -> TrustedKeys:
    """Return the keys of a JWK Set that fit `algorithms`.

    Other keys are ignored, because there may be newer types (RFC 7517, 5).  If no key
    fits, the result has none, and the log has a warning.

    Raises ValueError or RecursionError if the text is not a JWK Set.
    """
    document = json.loads(text)
    entries = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise ValueError("it is not a key set: there is no array of keys")
    if len(entries) > _MAX_SET_KEYS:
        raise ValueError(f"it has {len(entries)} keys; the limit is {_MAX_SET_KEYS}")
    keys = [key for entry in entries if (key := _parse_public_key(entry))]
    names = dict.fromkeys(each for algorithm in algorithms for each in _names(algorithm))
    by_algorithm = {each: tuple(key for key in keys if _fits(key, each)) for each in names}
    if not any(by_algorithm.values()):
        log.warning("no key in this set fits an allowed algorithm", keys=name, count=len(entries))
    return TrustedKeys(name, by_algorithm, frozenset(key.kid for key in keys if key.kid is not None), expires)


def _parse_public_key(entry: Any) -> jwk.Key | None:
    """Return a key of a set, or None if it cannot be used."""
    # A secret or private key in a published set is known to anyone.
    if not isinstance(entry, dict) or entry.get("kty") not in _PUBLIC_KEY_TYPES or "d" in entry:
        return None
    if entry.get("alg") == "EdDSA":  # the curve says it, too, and a token may have the name of the curve
        entry = {name: value for name, value in entry.items() if name != "alg"}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", SecurityWarning)  # refuses RSA keys below 2048 bits
            return jwk.import_key(entry)
    except Exception:
        return None  # joserfc raises many classes for keys that it cannot read


def _read_key_set(name: str, url: str, algorithms: Iterable[str]) -> TrustedKeys:
    """Return the keys in a file that fit; raise ConfigurationError if none does."""
    try:
        text = read_bounded(url2pathname(urlsplit(url).path), _MAX_SET_BYTES)
        keys = parse_key_set(name, text, algorithms)
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{name}: {url}: {error}") from None
    if not any(keys.by_algorithm.values()):
        raise ConfigurationError(f"{name}: {url}: no key fits {', '.join(keys.by_algorithm)}")
    return keys


class RemoteKeys:
    """A key set behind a URL, which is fetched if it is needed (N71).

    There is at most one fetch at a time, and all callers of `current` wait for it.
    Redirects are not followed.  `ttl` is how many seconds a set is current, by `clock`,
    and `timeout` how many seconds a fetch may take.  `fetched` is called after each
    fetch of a whole set.
    """

    def __init__(
        self,
        name: str,
        url: str,
        algorithms: Iterable[str],
        *,
        ttl: float,
        clock: Callable[[], float],
        timeout: float = _FETCH_TIMEOUT_SECONDS,
        fetched: Callable[[], None] = lambda: None,
    ) -> None:
        self._name = name
        self._url = url
        self._algorithms = tuple(algorithms)
        self._ttl = ttl
        self._clock = clock
        self._timeout = timeout
        self._fetched = fetched
        with usable_proxies():
            # No connection is kept open, because fetches are far apart.
            self._client = httpx2.AsyncClient(
                follow_redirects=False,
                timeout=None,
                limits=httpx2.Limits(max_keepalive_connections=0),
                # An uncompressed response does not grow, so `_MAX_SET_BYTES` bounds
                # memory too.
                headers={"Accept": "application/jwk-set+json, application/json", "Accept-Encoding": "identity"},
            )
        # The newest set, even if it is out of date; None before the first one.
        self._keys: TrustedKeys | None = None
        # The keys of that set, and those that it lacks for the first time: a set that
        # several machines serve may lack a key for a moment.
        self._known: frozenset[str] | None = None
        # Why the last fetch failed.
        self._failure = "closed"
        # The fetch in progress, which all callers share.
        self._flight: asyncio.Task[None] | None = None
        # The earliest times of the next fetch: after a failure, and for an unknown kid.
        self._retry_at = self._extra_at = -math.inf

    def is_current(self, keys: TrustedKeys) -> bool:
        """Whether `keys` are the newest set, and their time is not over."""
        return keys is self._keys and self._clock() < keys.expires

    async def current(self, kid: str | None) -> TrustedKeys:
        """Return the newest set.  Waits for a fetch if one is needed or in progress.

        If a caller is cancelled, the fetch goes on.  If a fetch fails, the old set is
        returned.  Raises KeysUnavailable if there is no old set.
        """
        # There are three cases: 1. no set, or its time is over; 2. the kid is not in
        # the set; 3. the set can be used as it is.
        now = self._clock()
        if self._keys is None or now >= self._keys.expires:
            may_fetch, is_extra = now >= self._retry_at, False
        elif kid is not None and self._keys.kids is not None and kid not in self._keys.kids:
            may_fetch, is_extra = now >= self._extra_at, True
        else:
            return self._keys
        if may_fetch and self._flight is None:
            if is_extra:
                self._extra_at = now + _FETCH_PAUSE_SECONDS
            self._flight = asyncio.create_task(self._fetch())
        if self._flight is not None:
            # asyncio.wait() does not cancel the task if this caller is cancelled.
            await asyncio.wait([self._flight])
        if self._keys is None:
            raise KeysUnavailable(f"the keys of {self._name}: {self._failure}")
        return self._keys

    async def _fetch(self) -> None:
        """Fetch the set once; a failure is logged, and not raised."""
        try:
            async with asyncio.timeout(self._timeout):
                text = await self._download()
            before = self._keys
            self._keys = parse_key_set(self._name, text, self._algorithms, expires=self._clock() + self._ttl)
            self._known = self._keys.prints() | (before.prints() if before else frozenset())
            self._fetched()
        except Exception as error:
            # Any failure: the old set stays in use.
            self._retry_at = self._clock() + _FETCH_PAUSE_SECONDS
            self._failure = f"{type(error).__name__}: {error}".rstrip(": ") + hint_at_proxy(self._url)
            log.warning("cannot fetch keys", keys=self._name, reason=self._failure, old=self._keys is not None)
        finally:
            self._flight = None

    def prints(self) -> frozenset[str] | None:
        """Return the fingerprints of the keys of the last two sets."""
        return self._known

    async def _download(self) -> bytes:
        """Return the response; raise ValueError if it is an error or too large."""
        async with self._client.stream("GET", self._url) as response:
            if response.status_code != httpx2.codes.OK:
                raise ValueError(f"answered {response.status_code}")
            text = bytearray()
            async for chunk in response.aiter_raw():
                text += chunk
                if len(text) > _MAX_SET_BYTES:
                    raise ValueError(f"it is larger than {_MAX_SET_BYTES} bytes")
            return bytes(text)

    async def aclose(self) -> None:
        """Cancel the fetch in progress, and close the HTTP client."""
        if self._flight is not None:
            self._flight.cancel()
            await asyncio.wait([self._flight])
        await self._client.aclose()
