from __future__ import annotations

import os

import pytest

from tests.deploy.dockerfile import Image, build
from tests.deploy.trees import Tree
from tests.hub.proxies import DEPLOY
from tests.installation import ROOT


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    """A bare Debian.  Tests copy it."""
    assert os.geteuid() == 0, "only root can make a bare Debian"
    return Tree.bare(tmp_path_factory.mktemp("debian") / "bare")


@pytest.fixture(scope="session")
def image(bare: Tree, tmp_path_factory: pytest.TempPathFactory) -> Image:
    """The image of examples/deploy."""
    return build(DEPLOY / "Dockerfile", ROOT, bare, tmp_path_factory.mktemp("image"))
