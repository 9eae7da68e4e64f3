"""Names: what the event log says of the person behind a connection.

    event_log_subject   subject                          token_id
    hash                blake2b:…, under the hub's key   the same
    plain               the subject itself               the token's `jti`
    none                null                             null

A digest is BLAKE2b with a key (RFC 7693) over the issuer and the name, so a user has
the same one on all nodes with the same key.  Destroy the key, and the digests name no
person any more.  It is in a file beside the log, unless a setting gives it.

Belongs here: which names a line has.  Does not belong here: anything else of a
connection (`sessions`).
"""

from __future__ import annotations

import os
import secrets
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from hub.delivery.subscriber import Subscriber

KEY_FILE: Final = "key"
"""The file with the key, in the directory of the log."""
PREFIX: Final = "blake2b:"
"""What a digest begins with."""
_DIGEST_BYTES: Final = 16
_KEY_BYTES: Final = 32

Kind = Literal["subject", "token"]


class Names:
    """The names in the lines of one node.

    `mode` is the setting `event_log_subject`; `with_addresses` whether lines have the
    addresses of clients.
    """

    def __init__(self, mode: Literal["hash", "plain", "none"], key: bytes, *, with_addresses: bool) -> None:
        self._mode = mode
        self._key = key
        self._with_addresses = with_addresses

    def of(self, subscriber: Subscriber) -> dict[str, Any]:
        """Return `issuer`, `subject`, `token_id` and `address`; each may be None."""
        identity = subscriber.grant.identity
        issuer, subject, token_id = identity.issuer, identity.subject, identity.token_id
        if self._mode == "none":
            issuer = subject = token_id = None  # type: ignore[assignment]
        elif self._mode == "hash":
            subject = None if subject is None else digest(self._key, "subject", issuer, subject)
            token_id = None if token_id is None else digest(self._key, "token", issuer, token_id)
        address = subscriber.address or None if self._with_addresses else None
        return {"issuer": issuer, "subject": subject, "token_id": token_id, "address": address}


def digest(key: bytes, kind: Kind, issuer: str, name: str) -> str:
    """Return the digest of a subject, or of the id of a token, of an issuer."""
    message = f"{kind}\0{issuer}\0{name}".encode("utf-8", "surrogatepass")
    if len(key) > blake2b.MAX_KEY_SIZE:
        key = blake2b(key).digest()
    return PREFIX + blake2b(message, key=key, digest_size=_DIGEST_BYTES).hexdigest()


def read_key(directory: str) -> bytes:
    """Return the key of the log in a directory.

    Raises FileNotFoundError if there is none, and OSError if it cannot be read.
    """
    path = Path(directory, KEY_FILE)
    key = path.read_bytes().strip()
    if len(key) < _KEY_BYTES:
        raise OSError(f"{path} has no key of {_KEY_BYTES} bytes")
    return key


def read_or_make_key(directory: str) -> bytes:
    """Return the key of the log in a directory; make one if there is none.

    Processes that do it at the same time get the same.  Raises OSError.
    """
    try:
        return read_key(directory)
    except FileNotFoundError:
        pass
    made = secrets.token_hex(_KEY_BYTES).encode() + b"\n"
    unnamed = Path(directory, f".{KEY_FILE}-{secrets.token_hex(8)}")
    descriptor = os.open(unnamed, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    try:
        os.write(descriptor, made)
        os.fsync(descriptor)
        os.link(unnamed, Path(directory, KEY_FILE))  # whole, or not at all
    except FileExistsError:
        pass
    except OSError:  # a file system without hard links
        unnamed.rename(Path(directory, KEY_FILE))
    finally:
        os.close(descriptor)
        unnamed.unlink(missing_ok=True)
    return read_key(directory)
