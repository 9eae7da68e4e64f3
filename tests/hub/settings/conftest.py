from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the settings of the environment."""
    for name in os.environ:
        if name.startswith("HUB_"):
            monkeypatch.delenv(name)
