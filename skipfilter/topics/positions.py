"""Sets of positions in a text, each set as one integer: the core of the linear
matchers.

Bit p of a set stands for the position before byte p.  What has been read of a pattern
can end at any position of `cursors`; reading on maps this set to the next one:

    topic      / b / 4 2
    cursors    1 . . . . .        start
               . . . 1 . .        `after_literal` of  /b/
               . . . 1 1 1        `after_run` of letters and digits: one addition
                                  carries through the run

Each step costs a few operations on integers of |text| bits, whatever the number of
cursors.  A chunk of a literal is searched for once, for all patterns.

Source: the addition is MatchStar of R. Cameron et al., Bitwise Data Parallelism in
Regular Expression Matching, 2014.
"""

from __future__ import annotations

from typing import Final

CHUNK: Final = 64
"""Bytes of a literal that are searched for at once.

A literal that overlaps itself costs as many steps as it has bytes.
"""


class Positions:
    """A text, and the positions of the literals and classes that were looked for."""

    __slots__ = ("_backwards", "_classes", "_found", "end", "text")

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.end = len(text)
        # Reversed, because int() reads the digit of the first byte as the highest bit.
        self._backwards = text[::-1]
        self._classes: dict[bytes, int] = {}  # class -> positions of its members
        self._found: dict[bytes, int] = {}  # literal -> positions where it starts

    def members(self, table: bytes) -> int:
        """Return the positions of the members of a class.

        `table` is for `bytes.translate`: 1 for a member, else 0.
        """
        members = self._classes.get(table)
        if members is None:
            members = int(self._backwards.translate(table), 2) if self.text else 0
            self._classes[table] = members
        return members

    def after_literal(self, literal: bytes, cursors: int) -> int:
        """Return the positions where `literal` ends if it starts at one of
        `cursors`.
        """
        # 1. At most one cursor: compare the text there.
        if not cursors & (cursors - 1):
            there = cursors and self.text.startswith(literal, cursors.bit_length() - 1)
            return cursors << len(literal) if there else 0
        # 2. A long literal: one chunk after the other.
        if len(literal) > CHUNK:
            return self.after_literal(literal[CHUNK:], self.after_literal(literal[:CHUNK], cursors))
        # 3. Otherwise find all its positions once, for all patterns.
        return (cursors & self.found(literal)) << len(literal)

    def found(self, literal: bytes) -> int:
        """Return the positions where `literal` starts."""
        found = self._found.get(literal)
        if found is None and len(literal) <= CHUNK:
            found = self._found[literal] = set_of(find_all(self.text, literal), self.end)
        elif found is None:
            # Where its chunks stand one after the other.
            found = -1
            for at in range(0, len(literal), CHUNK):
                found &= self.found(literal[at : at + CHUNK]) >> at
        return found


def after_run(members: int, cursors: int) -> int:
    """Return the positions where any number of members of a class can end."""
    # MatchStar: the addition carries each cursor to the end of its run of members.
    return (((cursors & members) + members) ^ members) | cursors


def find_all(text: bytes, literal: bytes) -> list[int]:
    """Return the positions where `literal` starts in `text`, in ascending order."""
    found = []
    at = text.find(literal)
    while at >= 0:
        found.append(at)
        at = text.find(literal, at + 1)
    return found


def set_of(positions: list[int], length: int) -> int:
    """Return the integer with these bits, in time linear in `length`."""
    if len(positions) < 8:
        return sum(1 << position for position in positions)
    # Setting many bits one by one would cost |positions| * length.
    bits = bytearray(b"0") * (length + 1)
    for position in positions:
        bits[length - position] = ord("1")
    return int(bits, 2)
