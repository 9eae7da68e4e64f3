"""The site: built from the READMEs and docstrings, which stay the only copy of any text.

    README.md, hub/README.md, … ──sections──┐
                                            ├─► build/docs/docs ──zensical──► build/docs/site
    docstrings ─────────────────────────────┘                      a broken link stops it

Run it as `python -m tests.docs`, or `make docs`.  A page consists of sections of one
README.  Each section is in exactly one page, so no text is lost or doubled.  A link to a
file that is no page leads to the repository.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.installation import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

BUILD: Final = ROOT / "build" / "docs"
CONFIGURATION: Final = ROOT / ".github" / "mkdocs.yml"
TOP: Final = ""
"""The part of a README above its first section."""


@dataclass(frozen=True)
class Source:
    """Where the text of a page is from: sections of a file, or all of it."""

    file: str
    sections: tuple[str, ...] = ()


def _hub(*sections: str) -> Source:
    return Source("hub/README.md", sections)


def _library(*sections: str) -> Source:
    return Source("skipfilter/README.md", sections)


PAGES: Final[dict[str, Source]] = {
    "index.md": Source("README.md", (TOP, "Install", "Four numbers", "More")),
    "tutorial/first-hub.md": Source("README.md", ("A demo in 30 seconds", "The library in ten lines")),
    "tutorial/publish-subscribe.md": _hub(TOP, "Publish and subscribe"),
    "tutorial/browser.md": _hub("In a browser", "Gaps and silence", "Other clients"),
    "tutorial/frameworks.md": Source("examples/frameworks/README.md"),
    "tutorial/run.md": Source("examples/run/README.md"),
    "tutorial/chat.md": Source("examples/chat/README.md"),
    "tutorial/online.md": Source("examples/online/README.md"),
    "tutorial/library.md": _library(TOP, "SkipFilter", "Predicates"),
    "tutorial/spark.md": Source("skipfilter/spark/README.md", (TOP, "A first report")),
    "tutorial/examples.md": Source("examples/README.md"),
    "how-to/production.md": _hub("Production"),
    "how-to/deploy.md": Source("examples/deploy/README.md"),
    "how-to/history.md": _hub("History"),
    "how-to/connections.md": _hub("Many connections"),
    "how-to/upgrade.md": _hub("Stop, restart and upgrade"),
    "how-to/log-out.md": _hub("Log out"),
    "how-to/revoke.md": _hub("Revoke"),
    "how-to/rotate.md": _hub("Rotate a secret"),
    "how-to/explain.md": _hub("Why did it not arrive?"),
    "how-to/operate.md": _hub("How busy is it?", "Log", "Metrics"),
    "how-to/embed.md": _hub("In your application", "Event log"),
    "how-to/selectors.md": _library(
        "Selectors",
        "Limits",
        "Memory",
        "Threads, asyncio, processes",
        "Saving and loading",
        "An index of your own",
        "Fields of a message",
        "What may go wrong",
    ),
    "how-to/spark.md": Source(
        "skipfilter/spark/README.md",
        ("Other readers", "From a hub's event log", "A hub as a source and a sink", "On a cluster"),
    ),
    "how-to/questions.md": Source("skipfilter/spark/QUESTIONS.md"),
    "how-to/contributing.md": Source(".github/CONTRIBUTING.md"),
    "reference/command.md": _hub("The command", "Two dialects"),
    "reference/settings.md": _hub("Settings", "Modules"),
    "reference/protocol.md": Source("hub/protocol/PROTOCOL.md"),
    "reference/changes.md": Source("CHANGELOG.md"),
    "explanation/design.md": Source("README.md", ("Why not something else?", "How it works")),
    "explanation/engines.md": _library("Engines"),
    "explanation/comparison.md": Source("examples/comparison/README.md"),
    "explanation/security.md": Source(".github/SECURITY.md"),
    "explanation/measurements.md": Source("bench/README.md"),
    "explanation/tests.md": Source("tests/README.md"),
}
API: Final = {
    "reference/skipfilter.md": (
        "The library in Python",
        ("skipfilter.SkipFilter", "skipfilter.SelectorIndex", "skipfilter.fields",
         "skipfilter.UriTemplate", "skipfilter.UrlPattern", "skipfilter.Amqp", "skipfilter.Mqtt", "skipfilter.WordPattern",
         "skipfilter.compile_matcher", "skipfilter.core.sources", "skipfilter.topics.explanation", "skipfilter.errors",
         "skipfilter.engines", "skipfilter.bulk"),
    ),
    "reference/hub.md": (
        "The hub in Python",
        ("hub.http.embedding.create_app", "hub.http.embedding.HubApplication", "hub.protocol.updates.Update",
         "hub.auth.grant.Grant", "hub.auth.signing", "hub.client.asynchronous", "hub.client.synchronous",
         "hub.client.messages", "hub.client.errors", "hub.testing.memory_hub", "hub.testing.recording",
         "hub.testing.subscriber", "hub.pytest_plugin", "hub.settings.Settings", "hub.errors"),
    ),
}  # fmt: skip
"""Pages of docstrings: the title, and the objects."""

_FENCE: Final = re.compile(r"^(```.*?^```[^\n]*$)", re.MULTILINE | re.DOTALL)
_HEADING: Final = re.compile(r"^(#+) (.*)$", re.MULTILINE)
_LINK: Final = re.compile(r"(?<!`)(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


def anchor(heading: str) -> str:
    """Return the anchor of a heading, as GitHub and the site make it."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-")


def sections(text: str) -> dict[str, str]:
    """Return the sections of a page by heading: the part above the first is `TOP`."""
    found, name = {TOP: ""}, TOP
    for part in _FENCE.split(text):
        if part.startswith("```"):
            found[name] += part
            continue
        for line in part.splitlines(keepends=True):
            if line.startswith("## "):
                name = line[3:].strip()
                found[name] = ""
            found[name] += line
    return found


class Site:
    """All pages, and where each file and each heading of a README is on the site."""

    def __init__(self) -> None:
        self._repository = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["urls"]["Repository"]
        self._texts: dict[str, str] = {}
        self._pages: dict[tuple[str, str], str] = {}  # the page of each section of a file
        self._files: dict[str, str] = {}  # the first page of each source
        self._anchors: dict[tuple[str, str], str] = {}  # page and anchor, by file and anchor there
        read = {file: sections((ROOT / file).read_text("utf-8")) for file in {each.file for each in PAGES.values()}}
        used: dict[str, list[str]] = {}
        for page, source in PAGES.items():
            all_sections = read[source.file]
            chosen = source.sections or tuple(all_sections)
            used.setdefault(source.file, []).extend(chosen)
            self._texts[page] = "".join(all_sections[name] for name in chosen)
            self._files.setdefault(source.file, page)
            for name in chosen:
                self._pages[source.file, name] = page
        for file, names in used.items():
            wanted = list(read[file])
            assert sorted(names) == sorted(wanted), (
                f"{file}: each section belongs to one page, so {set(wanted) ^ set(names)}"
            )
            self._find_anchors(file, read[file])

    def _find_anchors(self, file: str, read: dict[str, str]) -> None:
        """Note where each heading of a file is; equal ones have a number in both places."""
        there: Counter[str] = Counter()
        here: Counter[tuple[str, str]] = Counter()
        for section, text in read.items():
            page = self._pages[file, section]
            for _, heading in _HEADING.findall(_FENCE.sub("", text)):
                name = anchor(heading)
                old, new = there[name], here[page, name]
                there[name], here[page, name] = old + 1, new + 1
                own = f"{name}_{new}" if new else name
                self._anchors[file, f"{name}-{old}" if old else name] = f"{page}#{own}"

    def pages(self) -> dict[str, str]:
        """Return the text of each page, by path."""
        made = {page: self._page(page) for page in PAGES}
        for page, (title, objects) in API.items():
            made[page] = "\n\n".join([f"# {title}", *(f"::: {name}" for name in objects)]) + "\n"
        return made

    def _page(self, page: str) -> str:
        text = self._texts[page]
        if not text.startswith("# "):  # its first section becomes the page
            text = _outside(text, lambda part: _HEADING.sub(lambda found: f"{found[1][1:]} {found[2]}", part))
        return _outside(text, lambda part: _LINK.sub(lambda found: self._linked(page, found), part))

    def _linked(self, page: str, found: re.Match[str]) -> str:
        image, label, target = found.groups()
        if re.match(r"[a-z]+:", target):
            return found[0]
        return f"{image}[{label}]({self._target(page, PAGES[page].file, target)})"

    def _target(self, page: str, source: str, target: str) -> str:
        """Return where a link of a README leads on the site."""
        path, _, fragment = target.partition("#")
        file = os.path.normpath(Path(source).parent / path) if path else source
        if (ROOT / file).is_dir() and (ROOT / file / "README.md").is_file():
            file = f"{file}/README.md"
        if file in self._files:
            assert not fragment or (file, fragment) in self._anchors, f"{source}: {file} has no heading #{fragment}"
            there, _, own = (self._anchors[file, fragment] if fragment else self._files[file]).partition("#")
            way = os.path.relpath(there, Path(page).parent)
            return f"{way}#{own}" if own else way
        assert (ROOT / file).exists(), f"{source}: there is no {target}"
        if file.endswith((".png", ".svg")):
            return os.path.relpath(f"images/{Path(file).name}", Path(page).parent)
        return f"{self._repository}/blob/main/{file}" + (f"#{fragment}" if fragment else "")


def _outside(text: str, change: Callable[[str], str]) -> str:
    """Return a text that is changed outside of its blocks of code."""
    return "".join(part if part.startswith("```") else change(part) for part in _FENCE.split(text))


def build() -> int:
    """Build the site, and return the exit status: not 0 if a link leads nowhere."""
    shutil.rmtree(BUILD, ignore_errors=True)
    for page, text in Site().pages().items():
        file = BUILD / "docs" / page
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")
    images = BUILD / "docs" / "images"
    images.mkdir()
    for image in [ROOT / ".github" / "page.png", *(ROOT / "bench" / "results").glob("*.svg")]:
        shutil.copy(image, images)
    shutil.copy(CONFIGURATION, BUILD)
    tool = Path(sys.executable).with_name("zensical")
    return subprocess.run([tool, "build", "--strict", "--clean"], cwd=BUILD, check=False).returncode


if __name__ == "__main__":
    sys.exit(build())
