from __future__ import annotations

import os

import pytest

from tests.deploy.trees import Tree


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    """A bare Debian.  Tests copy it."""
    assert os.geteuid() == 0, "only root can make a bare Debian"
    return Tree.bare(tmp_path_factory.mktemp("debian") / "bare")
