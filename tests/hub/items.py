"""The rules of the protocol, and the tests and the code that cite them.

    python -m tests.hub.items          a summary, and the problems
    python -m tests.hub.items N23      a rule, its tests, and the lines that cite it

hub/protocol/PROTOCOL.md has one line for each rule.  A rule that is not implemented or
not tested has a second line that says so.  Prose cites a rule by its number, as in
"(N44)".  The name of a test begins with the numbers of the rules that it tests:

    test_n14_n3_the_parser_agrees_with_the_whatwg    tests N14 and N3
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

ROOT: Final = Path(__file__).parents[2]
PROTOCOL: Final = ROOT / "hub" / "protocol" / "PROTOCOL.md"
CITING: Final = (".github", "hub", "skipfilter", "tests", "README.md")
"""The folders and files below `ROOT` that may cite rules."""

_SUFFIXES: Final = {".html", ".js", ".lua", ".md", ".py", ".sql"}
_MADE_UP: Final = {"test_items.py"}
"""Files whose rules are examples, and not those of the protocol."""

_RULE_LINE: Final = re.compile(r"- \*\*([NVRT][0-9]+)\*\* (\S.*)")
_MARK_LINE: Final = re.compile(r"  \*(Not implemented|In part|No test): (\S.*)\*")
_CITATION: Final = re.compile(r"\b[NVRT][0-9]+\b")
_WORD_OF_TEST: Final = re.compile(r"[nvrt][0-9]+")
_LINT_CODES: Final = re.compile(r"# noqa: [A-Z0-9, ]+")  # ruff has codes that look like rules


class Rule(NamedTuple):
    """A rule: number, sentence, and the mark and reason of its second line, if any."""

    number: str
    text: str
    mark: str = ""
    reason: str = ""

    @property
    def is_tested(self) -> bool:
        """Whether a test must cite the rule; if not, no test may."""
        return self.mark in ("", "In part")


class Citation(NamedTuple):
    """A line that cites a rule: file, line number from 1, and the name of its test."""

    number: str
    path: Path
    line: int
    test: str = ""

    def __str__(self) -> str:
        path = self.path.relative_to(ROOT) if self.path.is_relative_to(ROOT) else self.path
        return f"{path}::{self.test}" if self.test else f"{path}:{self.line}"


# -- reading


def parse_rules(text: str) -> dict[str, Rule]:
    """Return the rules of a page by number, in its order.

    Raises `ValueError` if a line looks like a rule or a mark but is not one, or if a
    number is not above the number before it.

    >>> parse_rules("- **N7** Tokens travel over HTTPS.\\n  *Not implemented: the proxy does it.*")["N7"].reason
    'the proxy does it.'
    """
    rules: dict[str, Rule] = {}
    last: Rule | None = None
    for line in text.splitlines():
        if match := _RULE_LINE.fullmatch(line):
            rule = Rule(*match.groups())
            if last and _order(rule) <= _order(last):
                raise ValueError(f"{rule.number} comes after {last.number}")
            last = rules[rule.number] = rule
        elif (match := _MARK_LINE.fullmatch(line)) and last and not last.mark:
            last = rules[last.number] = Rule(last.number, last.text, *match.groups())
        elif line.startswith(("- **", "  ")):
            raise ValueError(f"neither a rule nor its mark: {line}")
    return rules


def _order(rule: Rule) -> tuple[int, int]:
    return "NVRT".index(rule.number[0]), int(rule.number[1:])


def rules_of_test(name: str) -> list[str]:
    """Return the rules that the name of a test begins with.

    >>> rules_of_test("test_n14_n3_bytes_of_v4")
    ['N14', 'N3']
    """
    words = takewhile(_WORD_OF_TEST.fullmatch, name.split("_")[1:])
    return [*dict.fromkeys(word.upper() for word in words)]


def find_citations(root: Path) -> Iterator[Citation]:
    """Yield all citations of rules, by file; in a file, prose before tests."""
    for name in CITING:
        base = root / name
        for path in sorted(base.rglob("*")) if base.is_dir() else [base]:
            if path.suffix in _SUFFIXES and path.name not in _MADE_UP and path != PROTOCOL:
                yield from _citations_of(path)


def _citations_of(path: Path) -> Iterator[Citation]:
    text = path.read_text("utf-8")
    for number, line in enumerate(text.splitlines(), 1):
        for rule in _CITATION.findall(_LINT_CODES.sub("", line)):
            yield Citation(rule, path, number)
    if path.name.startswith("test_") and path.suffix == ".py":
        for test, number in _tests_of(ast.parse(text, path)):
            for rule in rules_of_test(test.rpartition("::")[2]):
                yield Citation(rule, path, number, test)


def _tests_of(body: ast.Module | ast.ClassDef, prefix: str = "") -> Iterator[tuple[str, int]]:
    """Yield each test's name, as pytest writes it, and its line.  Imports nothing."""
    for node in body.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield prefix + node.name, node.lineno
        elif isinstance(node, ast.ClassDef):
            yield from _tests_of(node, f"{prefix}{node.name}::")


# -- comparing


def find_unknown(rules: Mapping[str, Rule], citations: Iterable[Citation]) -> list[str]:
    """Return a line for each citation of an unknown rule, by files or by rules."""
    own = [
        f"{PROTOCOL.name}: {number}, which the lines of {rule.number} cite, is not a rule"
        for rule in rules.values()
        for number in _CITATION.findall(f"{rule.text} {rule.reason}")
        if number not in rules
    ]
    return own + [f"{cited}: {cited.number} is not a rule" for cited in citations if cited.number not in rules]


def find_untested(rules: Mapping[str, Rule], citations: Iterable[Citation]) -> list[str]:
    """Return a line for each rule without a test, unless its mark says so."""
    tested = {cited.number for cited in citations if cited.test}
    return [
        f"{rule.number} has no test, and no mark in {PROTOCOL.name} that says why"
        for rule in rules.values()
        if rule.is_tested and rule.number not in tested
    ]


def find_contradictions(rules: Mapping[str, Rule], citations: Iterable[Citation]) -> list[str]:
    """Return a line for each test of a rule that is marked as one without tests."""
    return [
        f"{cited} is about {cited.number}, which is marked '{rules[cited.number].mark}'"
        for cited in citations
        if cited.test and cited.number in rules and not rules[cited.number].is_tested
    ]


def summary(rules: Mapping[str, Rule], citations: Iterable[Citation]) -> str:
    """Return the counts of rules in one line."""
    tested = {cited.number for cited in citations if cited.test} & rules.keys()
    marks = [rule.mark for rule in rules.values()]
    return (
        f"{len(rules)} rules, {len(tested)} with tests, {marks.count('Not implemented')} not implemented,"
        f" {marks.count('In part')} in part, {marks.count('No test')} that no test can show"
    )


def describe(rule: Rule, citations: Iterable[Citation]) -> Iterator[str]:
    """Yield the lines that show a rule: its text, its tests, its citations in prose."""
    yield f"{rule.number}  {rule.text}"
    if rule.mark:
        yield f"{rule.mark}: {rule.reason}"
    places: dict[str, list[str]] = defaultdict(list)
    for cited in citations:
        if cited.number == rule.number:
            places["tests" if cited.test else "cited in"].append(f"  {cited}")
    for title in ("tests", "cited in"):
        if places[title]:
            yield from ("", title, *dict.fromkeys(places[title]))


def main(numbers: Sequence[str]) -> int:
    """Print the rules with these numbers, or a summary if there are none.

    Return the exit status.
    """
    rules = parse_rules(PROTOCOL.read_text("utf-8"))
    citations = [*find_citations(ROOT)]
    if wrong := [number for number in numbers if number.upper() not in rules]:
        print(f"{PROTOCOL.relative_to(ROOT)} has no rule {', '.join(wrong)}", file=sys.stderr)
        return 2
    if numbers:
        print("\n\n".join("\n".join(describe(rules[number.upper()], citations)) for number in numbers))
        return 0
    problems = [
        *find_unknown(rules, citations),
        *find_untested(rules, citations),
        *find_contradictions(rules, citations),
    ]
    print(*problems, summary(rules, citations), sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
