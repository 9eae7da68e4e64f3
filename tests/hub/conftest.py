from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.asgi import application
from tests.hub.world import World

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from hub.http.application import HubApplication


@pytest.fixture(scope="module", params=["task", "parked"])
def streams(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run the tests of a module with each kind of stream: with a task, and parked."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(World, "parks", request.param == "parked")
        yield


@pytest.fixture(params=[True, False], ids=["both", "current"])
async def app(request: pytest.FixtureRequest) -> AsyncIterator[HubApplication]:
    """A hub of both dialects, and one of the current dialect alone."""
    async with application(classic=request.param) as app:
        yield app
