"""Seeded workloads: the same values and topics in every run."""

from __future__ import annotations

import random

from skipfilter import UriTemplate

SEED = 20_261_121
SHELVES = 100
"""A topic is on one shelf, so one template in a hundred matches it."""


def templates(count: int) -> list[UriTemplate]:
    """`count` different templates, spread over SHELVES shelves, in a random order."""
    made = [UriTemplate(f"https://example.com/{n % SHELVES}/{{item}}{{?reader{n}}}") for n in range(count)]
    random.Random(SEED).shuffle(made)
    return made


def topics(count: int) -> list[str]:
    """`count` different topics."""
    chance = random.Random(SEED + 1)
    return [f"https://example.com/{chance.randrange(SHELVES)}/{n}" for n in range(count)]
