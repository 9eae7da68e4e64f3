"""Opaque cursors: a position in the history that a client may hold, and cannot read.

    place                   epoch │ number │ entry
    cursor   #  nonce │ encrypted place │ tag            in base64, always equally long

A stream that is silent needs a cursor that moves on with the history (R95).  The ids of
updates cannot be that: the client may not read them (N111), and a position would show
their number.  So the place is encrypted, with a random nonce: two cursors of one place
differ, and no client learns whether the history has moved between them.

All nodes of a history have its key.  A client that forges a cursor gains nothing,
because any client may begin anywhere; but a cursor of another history must not pass for
a place.
"""

from __future__ import annotations

import os
import re
import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from enum import StrEnum
from hashlib import blake2b
from typing import Final, NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_KEY_BYTES: Final = 16
_NONCE_BYTES: Final = 12
_FORM: Final = re.compile("#[A-Za-z0-9_-]{70}")  # a decoder alone would skip other characters
_PLACE: Final = struct.Struct(">8sQ8s")
_UNKNOWN: Final = bytes(8)


class Loss(StrEnum):
    """Why updates after a cursor may be lost (R92)."""

    TOO_OLD = "too_old"
    """The history has forgotten updates after it."""
    NEW_EPOCH = "new_epoch"
    """The history has lost entries since, and began a new epoch."""
    UNKNOWN = "unknown"
    """The history has forgotten it, or never had it."""


class Place(NamedTuple):
    """A position, as all nodes of a history count it."""

    epoch: bytes
    """The digest of the epoch's name."""
    number: int
    """The position without the offset of a node."""
    entry: bytes
    """The digest of the id of the entry there; zeros if it is not known."""

    def loss(
        self, epoch: str, *, last: int, there: str | None, published: int, presence: int | None = None
    ) -> Loss | None:
        """Return why updates after it may be lost; None if none is.

        `epoch` is the present one, `last` the newest number, and `there` the id of the
        entry with its number, if the history has that.  `published` and `presence` are
        the numbers of the newest forgotten entries, of the kinds that are wanted.
        """
        # A server that returned to an older state may not know that itself.
        is_other = there is not None and self.entry not in (_UNKNOWN, _digest(there))
        if self.epoch != _digest(epoch) or self.number > last or is_other:
            return Loss.NEW_EPOCH
        return Loss.TOO_OLD if self.number < max(published, presence or 0) else None


class Seal:
    """Makes opaque cursors of places with the key of a history, and opens them."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._cipher = AESGCM(key)

    def cursor(self, epoch: str, number: int, id: str = "") -> str:
        """Return a new cursor for a number in an epoch, in some microseconds.

        `id` is that of the entry with the number, if it is known.  A number below 0 is
        of an earlier epoch, whose name is not known any more.
        """
        nonce = os.urandom(_NONCE_BYTES)
        epoch, number = (epoch, number) if number >= 0 else ("", 0)
        place = _PLACE.pack(_digest(epoch), number, _digest(id) if id else _UNKNOWN)
        return "#" + urlsafe_b64encode(nonce + self._cipher.encrypt(nonce, place, None)).rstrip(b"=").decode("ascii")

    def place(self, cursor: str) -> Place | None:
        """Return the place of a cursor; None if no node of this history has made it."""
        if _FORM.fullmatch(cursor) is None:
            return None
        sealed = urlsafe_b64decode(cursor[1:] + "==")
        try:
            return Place(*_PLACE.unpack(self._cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], None)))
        except InvalidTag:
            return None

    def digest(self, text: str) -> str:
        """Return a digest of a text that only the nodes of the history can compute."""
        return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16, key=self._key).hexdigest()


def is_opaque(cursor: str) -> bool:
    """Return whether a cursor is no id of an update: none begins with `#` (N51)."""
    return cursor.startswith("#")


def new_key() -> bytes:
    """Return the key of a new history."""
    return os.urandom(_KEY_BYTES)


def _digest(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
