from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.hub.world import World

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module", params=["task", "parked"])
def streams(request: pytest.FixtureRequest) -> Iterator[None]:
    """Both kinds of streams in turn, in the worlds of a module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(World, "parks", request.param == "parked")
        yield
