"""Each item of the protocol is held by a test or has a reason, and README.md says which."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.hub import items

if TYPE_CHECKING:
    from collections.abc import Sequence

LONGEST_TITLE = 70


@pytest.fixture(scope="module")
def held() -> items.Held:
    return items.find_tests(items.TESTS)


@pytest.fixture
def three_items(monkeypatch: pytest.MonkeyPatch) -> None:
    """A protocol of three items: one with nothing to say about, one that is not here, and one partly."""
    monkeypatch.setattr(items, "ITEMS", {"Some": {"N1": "a * | b", "N2": "two"}, "Others": {"V1": "three"}})
    monkeypatch.setattr(items, "NOT_HERE", {"N2": "for others", "V1": "partly: not all"})


def written(path: Path, *names: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(f"def {name}(): ..." for name in names))
    return path


def holding(**names: Sequence[str]) -> items.Held:
    """Item -> tests of these names, in a file of their own; none for the items that are left out."""
    path = items.README.with_name("test_some.py")
    return {item: [items.Holder(path, name) for name in names.get(item, ())] for item in items.titles()}


# -- the items of this hub


def test_every_item_is_held_by_a_test_or_has_a_reason(held: items.Held) -> None:
    assert items.missing(held) == []


def test_no_item_has_both_tests_and_a_reason_for_having_none(held: items.Held) -> None:
    assert items.contradictory(held) == []


def test_the_readme_is_what_the_names_of_the_tests_say(held: items.Held) -> None:
    assert items.README.read_text("utf-8") == items.render(held), "run python -m tests.hub.items"


def test_a_reason_is_one_line_about_an_item_that_exists() -> None:
    assert set(items.NOT_HERE) <= set(items.titles())
    assert [item for item, reason in items.NOT_HERE.items() if not reason.strip() or "\n" in reason] == []


def test_an_item_has_one_section_and_a_short_title() -> None:
    assert len(items.titles()) == sum(map(len, items.ITEMS.values()))
    assert [title for title in items.titles().values() if not 0 < len(title) <= LONGEST_TITLE] == []


def test_items_come_in_the_order_of_the_checklist() -> None:
    numbered = [("NVRT".index(item[0]), int(item[1:])) for item in items.titles()]
    assert numbered == sorted(numbered)


def test_what_the_reasons_refer_to_exists() -> None:
    named = set(re.findall(r"\b[NVRT][0-9]+\b", " ".join(items.NOT_HERE.values())))
    assert named <= set(items.titles())


# -- names of tests -> items


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("test_n14_what_is_parsed", ["N14"]),
        ("test_n14_v3_t45_r20_what_is_parsed", ["N14", "V3", "T45", "R20"]),
        ("test_what_n14_says", []),
        ("test_n14_what_n3_says", ["N14"]),
        ("test_n14", ["N14"]),
        ("test_n14_n3", ["N14", "N3"]),
        ("test_n_values_of_v4", []),
        ("test_n14b_n3", []),
        ("test_p1_is_a_price", []),
        ("test_nothing", []),
    ],
)
def test_the_items_are_the_first_words_of_a_name(name: str, expected: list[str]) -> None:
    assert items.items_in(name) == expected


def test_tests_are_found_by_file_and_line_in_all_folders(tmp_path: Path) -> None:
    below = written(tmp_path / "a" / "b" / "test_below.py", "test_n2_z", "test_n2_a")
    above = written(tmp_path / "test_above.py", "test_v1_n2_n2_x", "test_nothing", "make_n1_x")
    written(tmp_path / "conftest.py", "test_n1_is_in_no_file_of_tests")
    found = {item: tests for item, tests in items.find_tests(tmp_path).items() if tests}
    assert found == {
        "N2": [(below, "test_n2_z"), (below, "test_n2_a"), (above, "test_v1_n2_n2_x")],
        "V1": [(above, "test_v1_n2_n2_x")],
    }


def test_coroutines_and_methods_are_tests_and_functions_in_functions_are_none(tmp_path: Path) -> None:
    path = tmp_path / "test_some.py"
    path.write_text(
        "async def test_n1_a():\n    def test_n2_inside(): ...\n\nclass TestSome:\n    async def test_v1_b(self): ...\n"
    )
    found = {item: tests for item, tests in items.find_tests(tmp_path).items() if tests}
    assert found == {"N1": [(path, "test_n1_a")], "V1": [(path, "test_v1_b")]}


@pytest.mark.parametrize("name", ["test_n999_x", "test_n1_n999_x", "test_n01_x", "test_n85_is_not_in_use"])
def test_an_item_that_does_not_exist_is_an_error_that_names_the_test(name: str, tmp_path: Path) -> None:
    path = written(tmp_path / "test_some.py", "test_n1_fine", name)
    with pytest.raises(LookupError, match=rf"{re.escape(str(path))}: {name}: there is no item N(999|01|85)"):
        items.find_tests(tmp_path)


# -- what is said of them


def test_a_sentence_is_the_name_without_its_items() -> None:
    sentence = items.Holder(Path(), "test_n1_v3_the_hub_s_own_path_says_so").sentence
    assert sentence == "the hub's own path says so"


@pytest.mark.usefixtures("three_items")
def test_a_reason_does_for_a_test_unless_it_is_about_a_part() -> None:
    assert items.missing(holding()) == ["N1", "V1"]
    assert items.missing(holding(N1=["test_n1_x"], V1=["test_v1_x"])) == []


@pytest.mark.usefixtures("three_items")
def test_a_test_contradicts_a_reason_unless_that_is_about_a_part() -> None:
    assert items.contradictory(holding()) == []
    assert items.contradictory(holding(N1=["test_n1_x"], N2=["test_n2_x"], V1=["test_v1_x"])) == ["N2"]


@pytest.mark.usefixtures("three_items")
def test_the_summary_counts_and_names_what_is_missing() -> None:
    assert items.summary(holding()) == "3 items, 0 held by tests, 1 not here, 2 missing: N1 V1"
    full = holding(N1=["test_n1_x", "test_n1_y"], V1=["test_v1_x"])
    assert items.summary(full) == "3 items, 2 held by tests, 1 not here, 0 missing"


@pytest.mark.usefixtures("three_items")
def test_the_tables_literally() -> None:
    held = holding(V1=["test_v1_x_y", "test_v1_z"])
    held["V1"].append(items.Holder(items.TESTS / "skipfilter" / "test_other.py", "test_v1_other"))
    introduction, _, tables = items.render(held).partition("\n## ")
    assert "python -m tests.hub.items" in introduction
    assert tables == (
        "Some\n\n| item | what | tests |\n|---|---|---|\n"
        "| N1 | a \\* \\| b | **missing** |\n"
        "| N2 | two | not here: for others |\n"
        "\n## Others\n\n| item | what | tests |\n|---|---|---|\n"
        "| V1 | three | [test_some.py](test_some.py): x y; z<br>"
        "[test_other.py](../skipfilter/test_other.py): other<br>partly: not all |\n"
    )


@pytest.mark.usefixtures("three_items")
@pytest.mark.parametrize(("count", "expected"), [(3, "x0; x1; x2"), (4, "4 tests")])
def test_many_tests_of_a_file_are_counted(count: int, expected: str) -> None:
    text = items.render(holding(N1=[f"test_n1_x{number}" for number in range(count)]))
    assert f"| [test_some.py](test_some.py): {expected} |" in text


@pytest.mark.usefixtures("three_items")
def test_the_command_writes_the_readme_and_prints_the_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path / "test_some.py", "test_n1_x")
    monkeypatch.setattr(items, "TESTS", tmp_path)
    monkeypatch.setattr(items, "README", tmp_path / "README.md")
    items.main()
    assert items.README.read_text("utf-8") == items.render(items.find_tests(tmp_path))
    assert capsys.readouterr().out == "3 items, 1 held by tests, 1 not here, 1 missing: V1\n"
