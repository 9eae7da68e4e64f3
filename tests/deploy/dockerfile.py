"""Run the steps of a Dockerfile in bare Debian systems, without Docker.

    FROM debian:trixie-slim AS build    a copy of the bare system
    COPY, RUN, WORKDIR                  in it
    COPY --from=build                   from one copy to another

It knows the instructions that examples/deploy/Dockerfile uses, and refuses others.
"""

from __future__ import annotations

import glob
import json
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tests.deploy.trees import RELEASE

if TYPE_CHECKING:
    from tests.deploy.trees import Tree


@dataclass
class Image:
    """A system, and how a container of it starts."""

    tree: Tree
    directory: str = "/"
    user: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    entry_point: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    health_check: list[str] = field(default_factory=list)

    def run(self, *words: str) -> str:
        """Run a command as a container would, and return what it has printed."""
        return self.tree.run(*words, directory=self.directory, user=self.user, **self.environment)


def instructions(file: Path) -> list[tuple[str, str]]:
    """Return the instructions of a Dockerfile, with their arguments."""
    lines = [line for line in file.read_text("utf-8").splitlines() if not line.startswith("#")]
    joined = re.sub(r" *\\\n *", " ", "\n".join(lines))
    return [(words[0], words[1]) for line in joined.splitlines() if line for words in [line.split(None, 1)]]


def build(file: Path, context: Path, bare: Tree, work: Path) -> Image:
    """Return the image of the last stage; `context` is the folder that is copied from."""
    stages: dict[str, Image] = {}
    image = Image(bare)
    for name, rest in instructions(file):
        match name:
            case "FROM":
                base, _, stage = rest.partition(" AS ")
                assert base == f"debian:{RELEASE}-slim"
                image = stages[stage] = Image(bare.copy(work / (stage or "last")))
            case "RUN":
                image.run("sh", "-c", rest)
            case "COPY":
                _copy(image, rest, context, stages)
            case "WORKDIR":
                image.directory = rest
                image.tree.path(rest).mkdir(parents=True, exist_ok=True)
            case "ENV":
                image.environment |= dict(pair.split("=", 1) for pair in rest.split())
            case "USER":
                image.user = rest
            case "ENTRYPOINT":
                image.entry_point = json.loads(rest)
            case "CMD":
                image.arguments = json.loads(rest)
            case "HEALTHCHECK":
                image.health_check = ["sh", "-c", rest.removeprefix("CMD ")]
            case "EXPOSE" | "VOLUME":
                pass
            case _:
                raise AssertionError(f"{name}: this instruction is unknown here")
    return image


def _copy(image: Image, rest: str, context: Path, stages: dict[str, Image]) -> None:
    """Copy files and directories, as COPY does."""
    *given, target = rest.split()
    source = context
    if given[0].startswith("--from="):
        source = stages[given.pop(0).removeprefix("--from=")].tree.root
    into = image.tree.path(Path(image.directory) / target)
    for pattern in given:
        found = [Path(path) for path in glob.glob(str(source / pattern.lstrip("/")))]
        assert found, f"COPY {pattern}: there is no such file"
        for path in found:
            if path.is_dir():
                shutil.copytree(path, into, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                into.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, into)
