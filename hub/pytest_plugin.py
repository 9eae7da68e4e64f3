"""A plugin of pytest: the fixtures `mercure_hub` and `mercure_server`.

pytest imports this module in every environment that has skipfilter, so it imports
nothing else before a fixture is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hub.testing import MemoryHub


class MercureServer(NamedTuple):
    """A hub on a real port."""

    url: str
    """The URL of the hub, for any client."""
    token: str
    """A token that may publish and read everything."""
    hub: MemoryHub
    """The hub itself, with all updates that were published."""


@pytest.fixture
def mercure_hub() -> MemoryHub:
    """A hub in memory, which the application of the test contains.

    It does not run yet: the lifespan of the application runs `mercure_hub.app`.
    """
    return _new_hub()


@pytest.fixture
def mercure_server() -> Iterator[MercureServer]:
    """A hub in memory that runs on a real port, for the clients of the test."""
    hub = _new_hub()
    with hub.serving() as url:
        yield MercureServer(url, hub.token or "", hub)


def _new_hub() -> MemoryHub:
    try:
        from hub.testing import MemoryHub
    except ModuleNotFoundError as error:
        from skipfilter.text import missing

        pytest.fail(missing("this fixture", error.name or "a package", "testing"), pytrace=False)
    return MemoryHub()
