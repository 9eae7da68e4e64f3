"""The process of `hub serve`: its files, its garbage, and what it says of them."""

from __future__ import annotations

import gc
import logging
import resource
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from hub import Settings, server
from hub.server import OTHERS, YOUNG, _Collector, fitting, raised_file_limit

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.anyio


def test_the_limit_of_open_files_is_raised_as_far_as_it_goes() -> None:
    program = (
        "import resource; from hub.server import raised_file_limit;"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (200, 300));"
        "print(raised_file_limit(), *resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["300", "300", "300"]


def test_where_the_limit_cannot_be_raised_it_is_what_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*limit: object) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda which: (200, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert raised_file_limit() == 200


def test_no_more_subscribers_than_files(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(server, "raised_file_limit", lambda: 1_000)
    settings = Settings(dev=True, max_connections=1_000 - OTHERS)
    assert fitting(settings) is settings
    assert caplog.records == []
    with caplog.at_level(logging.WARNING):
        fitted = fitting(Settings(dev=True, max_connections=1_001 - OTHERS))
    assert fitted.max_connections == 1_000 - OTHERS
    assert "900 subscribers fit, not 901" in caplog.text


@pytest.fixture
def collector() -> Iterator[None]:
    """What a test does to Python's garbage collector is undone."""
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


@pytest.mark.usefixtures("collector")
async def test_what_there_is_at_the_start_is_never_looked_at_and_what_is_old_once_in_a_while() -> None:
    collect = _Collector()
    await collect()
    assert gc.get_threshold() == YOUNG
    frozen = gc.get_freeze_count()
    assert frozen > 10_000
    garbage: list[object] = []
    garbage.append(garbage)
    marker = id(garbage)
    for _ in range(3):
        gc.collect(1)  # it is old then
    del garbage
    assert marker in {id(each) for each in gc.get_objects()}
    await collect()
    assert marker not in {id(each) for each in gc.get_objects()}
    assert gc.get_freeze_count() <= frozen
