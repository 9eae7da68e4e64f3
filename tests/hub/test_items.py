"""Cited rules exist in PROTOCOL.md, and each rule has a test unless it is marked."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hub import items
from tests.hub.items import Citation, Rule

LONGEST_LINE = 120

PAGE = """\
# Rules

- **N1** A topic is text.
- **N2** An option.
  *Not implemented: tokens decide.*

## Others

- **N10** A limit of 0, as in N1.
  *In part: for bodies alone.*
- **V1** The end.
  *No test: see N1.*
"""
RULES = items.parse_rules(PAGE)


@pytest.fixture(scope="module")
def rules() -> dict[str, Rule]:
    return items.parse_rules(items.PROTOCOL.read_text("utf-8"))


@pytest.fixture(scope="module")
def citations() -> list[Citation]:
    return [*items.find_citations(items.ROOT)]


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def citing(*numbers: str, test: str = "") -> list[Citation]:
    return [Citation(number, Path("a.py"), line, test) for line, number in enumerate(numbers, 1)]


# -- the rules of this hub


def test_only_rules_that_exist_are_cited(rules: dict[str, Rule], citations: list[Citation]) -> None:
    assert items.find_unknown(rules, citations) == []


def test_each_rule_has_a_test_or_a_mark(rules: dict[str, Rule], citations: list[Citation]) -> None:
    assert items.find_untested(rules, citations) == []


def test_no_test_cites_a_rule_marked_as_untested(rules: dict[str, Rule], citations: list[Citation]) -> None:
    assert items.find_contradictions(rules, citations) == []


def test_all_folders_that_cite_rules_are_searched(citations: list[Citation]) -> None:
    tops = {cited.path.relative_to(items.ROOT).parts[0] for cited in citations}
    assert tops >= {"hub", "tests"}
    assert all((items.ROOT / name).exists() for name in items.CITING)


def test_each_rule_fits_into_a_line(rules: dict[str, Rule]) -> None:
    too_long = [line for line in items.PROTOCOL.read_text("utf-8").splitlines() if len(line) > LONGEST_LINE]
    assert too_long == []
    assert all(rule.text.endswith(".") for rule in rules.values())


# -- parsing the page


def test_a_page_has_rules_and_their_marks() -> None:
    assert [*RULES.values()] == [
        Rule("N1", "A topic is text."),
        Rule("N2", "An option.", "Not implemented", "tokens decide."),
        Rule("N10", "A limit of 0, as in N1.", "In part", "for bodies alone."),
        Rule("V1", "The end.", "No test", "see N1."),
    ]
    assert [rule.is_tested for rule in RULES.values()] == [True, False, True, False]


@pytest.mark.parametrize(("first", "second"), [("N2", "N2"), ("N10", "N9"), ("V1", "N2"), ("T1", "R1")])
def test_rules_are_in_order_and_each_has_one_line(first: str, second: str) -> None:
    with pytest.raises(ValueError, match=f"{second} comes after {first}"):
        items.parse_rules(f"- **{first}** a\n- **{second}** b\n")


@pytest.mark.parametrize(
    "line",
    [
        "- **P1** a price",
        "- **N2**",
        "- **N2** ",
        "- **n2** in lower case",
        "  *Not yet: another mark.*",
        "  *Not implemented:*",
        "  *Not implemented: without an end",
        "  a second line of text",
    ],
)
def test_a_malformed_rule_or_mark_is_an_error(line: str) -> None:
    with pytest.raises(ValueError, match="neither a rule nor its mark"):
        items.parse_rules(f"- **N1** one\n{line}\n")


@pytest.mark.parametrize("text", ["  *In part: a.*\n", "- **N1** one\n  *In part: a.*\n  *No test: b.*\n"])
def test_a_mark_belongs_to_a_rule_and_a_rule_has_at_most_one(text: str) -> None:
    with pytest.raises(ValueError, match="neither a rule nor its mark"):
        items.parse_rules(text)


# -- finding citations


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("test_n14_what_is_parsed", ["N14"]),
        ("test_n14_v3_t45_r20_what_is_parsed", ["N14", "V3", "T45", "R20"]),
        ("test_what_n14_says", []),
        ("test_n14_what_n3_says", ["N14"]),
        ("test_n14", ["N14"]),
        ("test_n14_n3", ["N14", "N3"]),
        ("test_n14_n14_twice", ["N14"]),
        ("test_n_values_of_v4", []),
        ("test_n14b_n3", []),
        ("test_p1_is_a_price", []),
        ("test_nothing", []),
    ],
)
def test_the_rules_are_the_first_words_of_a_name(name: str, expected: list[str]) -> None:
    assert items.rules_of_test(name) == expected


def test_tests_and_prose_cite_rules_in_all_folders(tmp_path: Path) -> None:
    deep = written(tmp_path / "hub" / "a" / "deep.py", '"""About N1 (V2–V4)."""\n\nx = 1  # N14, R1: P1 N1b aN1\n')
    script = written(tmp_path / "hub" / "page.js", "// T1\n")
    written(tmp_path / "hub" / "data.json", '"N1"')
    test = written(
        tmp_path / "tests" / "test_some.py",
        "async def test_n1_a():\n    def test_n2_inside(): ...\n\n"
        "class TestSome:\n    async def test_v1_n2_b(self): ...\n\ndef make_n1_c(): ...  # R2\n",
    )
    written(tmp_path / "tests" / "test_items.py", "def test_n1_a(): ...  # N1\n")
    conftest = written(tmp_path / "tests" / "conftest.py", "def test_n1_a(): ...  # noqa: N802, N1\nN = 'V9'\n")
    readme = written(tmp_path / "README.md", "As R3 says.\n")
    written(tmp_path / "bench" / "x.py", "# N1\n")
    (tmp_path / "skipfilter").mkdir()
    assert [*items.find_citations(tmp_path)] == [
        Citation("N1", deep, 1), Citation("V2", deep, 1), Citation("V4", deep, 1),
        Citation("N14", deep, 3), Citation("R1", deep, 3),
        Citation("T1", script, 1),
        Citation("V9", conftest, 2),
        Citation("R2", test, 7),
        Citation("N1", test, 1, "test_n1_a"),
        Citation("V1", test, 5, "TestSome::test_v1_n2_b"), Citation("N2", test, 5, "TestSome::test_v1_n2_b"),
        Citation("R3", readme, 1),
    ]  # fmt: skip


# -- comparing rules and citations


def test_a_citation_of_an_unknown_rule_is_found_with_its_file_and_line() -> None:
    assert items.find_unknown(RULES, citing("N1", "N999", "V1", "N01")) == [
        "a.py:2: N999 is not a rule",
        "a.py:4: N01 is not a rule",
    ]
    assert items.find_unknown(RULES, citing("T1", test="test_t1_x")) == ["a.py::test_t1_x: T1 is not a rule"]


def test_a_rule_that_refers_to_an_unknown_rule_is_found() -> None:
    rules = items.parse_rules("- **N1** As N3.\n- **N2** two\n  *No test: see N4 and N1.*\n")
    assert items.find_unknown(rules, []) == [
        "PROTOCOL.md: N3, which the lines of N1 cite, is not a rule",
        "PROTOCOL.md: N4, which the lines of N2 cite, is not a rule",
    ]


def test_a_rule_without_a_test_is_found_unless_it_is_marked() -> None:
    missing = "N1 has no test, and no mark in PROTOCOL.md that says why"
    assert items.find_untested(RULES, citing("N1", "N10")) == [missing, missing.replace("N1 ", "N10 ")]
    assert items.find_untested(RULES, citing("N10", test="test_n10_x")) == [missing]
    assert items.find_untested(RULES, citing("N1", "N10", test="test_n1_n10_x")) == []


def test_a_test_of_a_rule_marked_as_untested_is_found() -> None:
    assert items.find_contradictions(RULES, citing("N1", "N2", "N10", "V1", "N999")) == []
    assert items.find_contradictions(RULES, citing("N1", "N2", "N10", "V1", "N999", test="test_x")) == [
        "a.py::test_x is about N2, which is marked 'Not implemented'",
        "a.py::test_x is about V1, which is marked 'No test'",
    ]


# -- the command


@pytest.fixture
def small_protocol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with the rules of `PAGE`, and a test for each rule that needs one."""
    for name in ("hub", "skipfilter"):
        written(tmp_path / name / "__init__.py", '"""Code."""  # N1\n')
    written(tmp_path / "tests" / "test_some.py", "def test_n1_n10_x(): ...\n")
    written(tmp_path / "README.md", "")
    monkeypatch.setattr(items, "ROOT", tmp_path)
    monkeypatch.setattr(items, "PROTOCOL", written(tmp_path / "PROTOCOL.md", PAGE))
    return tmp_path


@pytest.mark.usefixtures("small_protocol")
def test_the_summary_counts_rules(capsys: pytest.CaptureFixture[str]) -> None:
    assert items.main([]) == 0
    summary = "4 rules, 2 with tests, 1 not implemented, 1 in part, 1 that no test can show\n"
    assert capsys.readouterr().out == summary


def test_errors_come_before_the_summary(small_protocol: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(small_protocol / "tests" / "test_some.py", "def test_n1_n2_x(): ...  # R1\n")
    assert items.main([]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "tests/test_some.py:1: R1 is not a rule",
        "N10 has no test, and no mark in PROTOCOL.md that says why",
        "tests/test_some.py::test_n1_n2_x is about N2, which is marked 'Not implemented'",
        "4 rules, 2 with tests, 1 not implemented, 1 in part, 1 that no test can show",
    ]


@pytest.mark.usefixtures("small_protocol")
def test_a_rule_is_shown_with_its_tests_and_citations(capsys: pytest.CaptureFixture[str]) -> None:
    assert items.main(["n1", "V1"]) == 0
    assert capsys.readouterr().out == (
        "N1  A topic is text.\n\n"
        "tests\n  tests/test_some.py::test_n1_n10_x\n\n"
        "cited in\n  hub/__init__.py:1\n  skipfilter/__init__.py:1\n\n"
        "V1  The end.\nNo test: see N1.\n"
    )


@pytest.mark.usefixtures("small_protocol")
def test_an_unknown_number_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert items.main(["N1", "N3", "x"]) == 2
    assert capsys.readouterr() == ("", "PROTOCOL.md has no rule N3, x\n")
