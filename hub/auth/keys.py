"""The keys that tokens are verified with, and where they come from (N65–N67, N71, V32).

    a secret, or a public key in PEM    one key, which has one algorithm
    file:///keys.json                   a key set (RFC 7517), read once, at start
    https://example.com/keys            a key set that is fetched when it is first needed

A set that was fetched is good for `ttl` seconds, and after that for as long as it cannot be fetched again:

    fetched        ttl is over     fetching fails      10 s later      fetched
    |--- current ---|------------- the old set stays good --------------|--- current --- …

A token chooses with its `kid` among keys that are trusted anyway, and is looked at for no other key (N66).  A set
without that key is fetched once more, as keys change: at most every 10 s, whatever the tokens say.
"""

from __future__ import annotations

import asyncio
import json
import math
import sys
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, get_args
from urllib.parse import urlsplit
from urllib.request import url2pathname

import httpx2
import structlog
from joserfc import jwk, jws
from joserfc.errors import JoseError, SecurityWarning

from hub.errors import ConfigurationError, InvalidToken, KeysUnavailable
from hub.issuers import Algorithm
from skipfilter.text import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from joserfc.jwa import JWSAlgModel

    from hub.issuers import Keys

log = structlog.stdlib.get_logger("hub")

ALGORITHMS: Final[tuple[str, ...]] = get_args(Algorithm)

_LARGEST_SET: Final = 256 * 1024  # bytes
_MOST_KEYS: Final = 100  # of a set
_TIMEOUT: Final = 5.0  # seconds that fetching a set may take
_PAUSE: Final = 10.0  # seconds between fetches that a client could cause
_KEY_TYPES: Final[dict[str, type[jwk.Key]]] = {
    "HS": jwk.OctKey,
    "RS": jwk.RSAKey,
    "PS": jwk.RSAKey,
    "ES": jwk.ECKey,
    "Ed": jwk.OKPKey,
}
_PUBLIC_KEY_TYPES: Final = ("RSA", "EC", "OKP")
_SIGNING_CURVES: Final = ("Ed25519", "Ed448")
_LEAST_RSA_BITS: Final = 2048  # RFC 7518, 3.3
_LEAST_SECRET: Final = 32  # bytes


class _Registry(jws.JWSRegistry):
    """Headers that are not known are ignored, as RFC 7515 has it; and its parts may be long, if the token may."""

    max_header_length = max_payload_length = max_signature_length = sys.maxsize

    def get_alg(self, name: str) -> JWSAlgModel:
        # Without the warning that EdDSA has a newer name, which would come with every token.
        return self.algorithms[name]


REGISTRY: Final = _Registry(algorithms=ALGORITHMS, strict_check_header=False)


class KeySource(Protocol):
    """Where the keys of one role come from."""

    async def current(self, kid: str | None) -> TrustedKeys:
        """The keys of now, asked for once more where none of them is `kid`.

        Raises KeysUnavailable where there never were any.
        """

    def is_current(self, keys: TrustedKeys) -> bool:
        """Whether those are the keys of now, and nothing need be asked."""

    async def aclose(self) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class TrustedKeys:
    """The keys of one role at one time; a source itself where they never change."""

    name: str
    """What the log calls them."""
    by_algorithm: Mapping[str, tuple[jwk.Key, ...]] = field(repr=False)
    """For each algorithm that is allowed, the keys that fit it."""
    kids: frozenset[str] | None = None
    """The ids by which a token may choose; None for a key that has no rivals."""
    expires: float = math.inf
    """When they are to be asked for again."""

    def check(self, token: jws.CompactSignature) -> None:
        """Raise InvalidToken unless one of the keys signed `token`, whose header is a checked one."""
        header = token.headers()
        algorithm, kid = header["alg"], header.get("kid")
        if algorithm not in self.by_algorithm:
            raise InvalidToken(f"alg {shown(algorithm)} is none of {self.name}: {', '.join(self.by_algorithm)}")
        keys = self.by_algorithm[algorithm]
        if self.kids is not None and kid is not None:
            keys = tuple(key for key in keys if key.kid == kid)
        if not keys:
            named = "" if kid is None else f"with kid {shown(kid)} "
            raise InvalidToken(f"{self.name} has no key {named}for {algorithm}")
        if not any(jws.validate_compact(token, key, registry=REGISTRY) for key in keys):
            raise InvalidToken(f"the signature is by no {algorithm} key of {self.name}")

    async def current(self, kid: str | None) -> TrustedKeys:
        return self

    def is_current(self, keys: TrustedKeys) -> bool:
        return keys is self

    async def aclose(self) -> None:
        pass


def open_keys(name: str, keys: Keys, *, ttl: float, clock: Callable[[], float], dev: bool = False) -> KeySource:
    """The source that `keys` describes.  Raises ConfigurationError if there is no key, or one that does not fit.

    In development (`dev`), a secret may be weak.
    """
    if keys.key is not None:
        return load_key(name, keys.key.get_secret_value(), keys.algorithm, dev=dev)
    assert keys.jwks_url is not None
    if keys.jwks_url.startswith("file:"):
        return _read_key_set(name, keys.jwks_url, keys.algorithms)
    return RemoteKeys(name, keys.jwks_url, keys.algorithms, ttl=ttl, clock=clock)


# -- one key


def load_key(name: str, text: str, algorithm: str | None, *, dev: bool = False) -> TrustedKeys:
    """The key that `text` is.  Raises ConfigurationError for a private key, and for a secret that can be guessed.

    In development (`dev`), such a secret is good, and a warning names its setting (V34).
    """
    key, algorithm = import_key(name, text, algorithm)
    if isinstance(key, jwk.OctKey):
        if not dev:
            _require_strong(name, text)
    elif key.is_private:
        raise ConfigurationError(
            f"{name}: this key is private, and the hub needs the public one; "
            "make it with: openssl pkey -in private.pem -pubout"
        )
    bits, least = _strength(key, algorithm)
    if bits < least:
        log.warning("This key is short, and so can be guessed", key=name, bits=bits, least=least)
    return TrustedKeys(name, {algorithm: (key,)})


def import_key(name: str, text: str, algorithm: str | None) -> tuple[jwk.Key, str]:
    """The key that `text` is, and its algorithm: HS256 for a secret where none is said.

    Raises ConfigurationError where they do not fit: a public key, which everybody may know, is no secret (T47).
    """
    is_pem = "-----BEGIN " in text
    if algorithm is None and is_pem:
        raise ConfigurationError(f"{name}: say the algorithm of this key in PEM")
    algorithm = algorithm or "HS256"
    if algorithm not in ALGORITHMS:
        raise ConfigurationError(f"{name}: algorithm {shown(algorithm)} is none of {', '.join(ALGORITHMS)}")
    if algorithm.startswith("HS") and is_pem:
        raise ConfigurationError(f"{name}: a key in PEM is no secret, as {algorithm} needs one")
    if not text:
        raise ConfigurationError(f"{name}: the key is empty")
    if _is_jwk(text):
        raise ConfigurationError(
            f"{name}: a key in JSON is no secret, and no key in PEM; put a public one into a file with a JWK Set, "
            "whose URL is a jwks_url"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SecurityWarning)
            key = _KEY_TYPES[algorithm[:2]].import_key(text)
    except Exception:
        # Whatever is wrong with it: and without the error's text, which may repeat the key.
        needed = "this is a public key, and no secret" if algorithm.startswith("HS") else "it needs one in PEM"
        raise ConfigurationError(f"{name}: no key for {algorithm}: {needed}") from None
    if not _fits(key, algorithm):
        raise ConfigurationError(f"{name}: this key is for another algorithm than {algorithm}")
    return key, algorithm


def _require_strong(name: str, secret: str) -> None:
    """Raise ConfigurationError for a secret that is blank or shorter than the output of HS256 (RFC 7518, 3.2)."""
    if not secret.strip():
        wrong = "blank"
    elif len(secret.encode("utf-8")) < _LEAST_SECRET:
        wrong = f"shorter than {_LEAST_SECRET} bytes"
    else:
        return
    raise ConfigurationError(f"{name}: this secret is {wrong}, so it can be guessed; make one: openssl rand -base64 32")


def _strength(key: jwk.Key, algorithm: str) -> tuple[int, int]:
    """Bits, and the least that there should be (RFC 7518, 3.2 and 3.3)."""
    if isinstance(key, jwk.OctKey):
        return 8 * len(key.raw_value), int(algorithm[2:])
    return (key.raw_value.key_size, _LEAST_RSA_BITS) if isinstance(key, jwk.RSAKey) else (0, 0)


def _is_jwk(text: str) -> bool:
    """Whether `text` is a key or a key set in JSON.  If it is public, it must not serve as a secret (T47)."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(document, dict) and not document.keys().isdisjoint(("kty", "keys"))


def _fits(key: jwk.Key, algorithm: str) -> bool:
    """Whether `key` may verify what `algorithm` signs, by its type, curve, use, alg and key_ops."""
    try:
        REGISTRY.get_alg(algorithm).check_key(key)
        key.check_key_op("verify")
    except JoseError:
        return False
    return not isinstance(key, jwk.OKPKey) or key.curve_name in _SIGNING_CURVES


# -- key sets


def parse_key_set(name: str, text: bytes, algorithms: Iterable[str], *, expires: float = math.inf) -> TrustedKeys:
    """The keys of a JWK Set that fit `algorithms`.  Others are passed over, as there may be newer types (RFC 7517, 5).

    Raises ValueError where it is no JWK Set, and RecursionError.
    """
    document = json.loads(text)
    entries = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise ValueError("it is no key set: there is no array of keys")
    if len(entries) > _MOST_KEYS:
        raise ValueError(f"{len(entries)} keys are more than {_MOST_KEYS}")
    keys = [key for entry in entries if (key := _parse_public_key(entry))]
    by_algorithm = {algorithm: tuple(key for key in keys if _fits(key, algorithm)) for algorithm in algorithms}
    if not any(by_algorithm.values()):
        log.warning("No key of this set is good for any algorithm that is allowed", keys=name, count=len(entries))
    return TrustedKeys(name, by_algorithm, frozenset(key.kid for key in keys if key.kid is not None), expires)


def _parse_public_key(entry: Any) -> jwk.Key | None:
    # A secret or private key that was published is anybody's.
    if not isinstance(entry, dict) or entry.get("kty") not in _PUBLIC_KEY_TYPES or "d" in entry:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", SecurityWarning)  # of RSA below 2048 bits
            return jwk.import_key(entry)
    except Exception:
        return None  # whatever is wrong with it, it is not ours


def _read_key_set(name: str, url: str, algorithms: Iterable[str]) -> TrustedKeys:
    try:
        with Path(url2pathname(urlsplit(url).path)).open("rb") as file:
            text = file.read(_LARGEST_SET + 1)
        if len(text) > _LARGEST_SET:
            raise ValueError(f"it is larger than {_LARGEST_SET} bytes")
        keys = parse_key_set(name, text, algorithms)
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{name}: {url}: {error}") from None
    if not any(keys.by_algorithm.values()):
        raise ConfigurationError(f"{name}: {url}: no key is for {', '.join(keys.by_algorithm)}")
    return keys


class RemoteKeys:
    """A key set behind a URL.  It follows no redirect (N71).

    All its mutable state is `_keys`, the newest set; `_failure`, why there is none; `_flight`, the fetch that is
    under way, for all who wait; and when the next may begin, `_retry_at` after one that failed, and `_extra_at`
    for an unknown kid.
    """

    def __init__(
        self,
        name: str,
        url: str,
        algorithms: Iterable[str],
        *,
        ttl: float,
        clock: Callable[[], float],
        timeout: float = _TIMEOUT,
    ) -> None:
        self._name = name
        self._url = url
        self._algorithms = tuple(algorithms)
        self._ttl = ttl
        self._clock = clock
        self._timeout = timeout
        # Nothing is kept between fetches: they are far apart.
        self._client = httpx2.AsyncClient(
            follow_redirects=False,
            timeout=None,
            limits=httpx2.Limits(max_keepalive_connections=0),
            # What is not compressed does not grow: so the bound below is one of memory too.
            headers={"Accept": "application/jwk-set+json, application/json", "Accept-Encoding": "identity"},
        )
        self._keys: TrustedKeys | None = None
        self._failure = "closed"
        self._flight: asyncio.Task[None] | None = None
        self._retry_at = self._extra_at = -math.inf

    def is_current(self, keys: TrustedKeys) -> bool:
        return keys is self._keys and self._clock() < keys.expires

    async def current(self, kid: str | None) -> TrustedKeys:
        now = self._clock()
        if self._keys is None or now >= self._keys.expires:
            may_fetch, is_extra = now >= self._retry_at, False
        elif kid is not None and self._keys.kids is not None and kid not in self._keys.kids:
            may_fetch, is_extra = now >= self._extra_at, True
        else:
            return self._keys
        if may_fetch and self._flight is None:
            if is_extra:
                self._extra_at = now + _PAUSE
            self._flight = asyncio.create_task(self._fetch())
        if self._flight is not None:
            # wait() cancels nothing: the others who wait do not mind that one went away.
            await asyncio.wait([self._flight])
        if self._keys is None:
            raise KeysUnavailable(f"the keys of {self._name}: {self._failure}")
        return self._keys

    async def _fetch(self) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                text = await self._download()
            self._keys = parse_key_set(self._name, text, self._algorithms, expires=self._clock() + self._ttl)
        except Exception as error:
            # Whatever it was, the old set is the best there is.
            self._retry_at = self._clock() + _PAUSE
            self._failure = f"{type(error).__name__}: {error}".rstrip(": ")
            log.warning("Keys cannot be fetched", keys=self._name, reason=self._failure, old=self._keys is not None)
        finally:
            self._flight = None

    async def _download(self) -> bytes:
        async with self._client.stream("GET", self._url) as response:
            if response.status_code != httpx2.codes.OK:
                raise ValueError(f"answered {response.status_code}")
            text = bytearray()
            async for chunk in response.aiter_raw():
                text += chunk
                if len(text) > _LARGEST_SET:
                    raise ValueError(f"it is larger than {_LARGEST_SET} bytes")
            return bytes(text)

    async def aclose(self) -> None:
        if self._flight is not None:
            self._flight.cancel()
            await asyncio.wait([self._flight])
        await self._client.aclose()
