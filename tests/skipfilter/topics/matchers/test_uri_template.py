"""URI templates: vectors, agreement with a slow and obviously right matcher, and no
explosion.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pytest
import uritemplate
from hypothesis import given
from hypothesis import strategies as st

from skipfilter import PatternError, UriTemplate
from skipfilter.topics.matchers import uri_template

if TYPE_CHECKING:
    from collections.abc import Callable

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[3] / "vectors" / "uri_template.json").read_text("utf-8"))


def test_v14_v12_t92_every_expansion_of_the_specification_matches_its_own_template() -> None:
    for template, expansion in VECTORS["expansions"]:
        assert UriTemplate(template).match(expansion), (template, expansion)


@pytest.mark.parametrize("text", VECTORS["refused"])
def test_v11_v14_t92_an_invalid_template_is_named(text: str) -> None:
    with pytest.raises(PatternError, match=re.escape(repr(text))):
        UriTemplate(text)


@pytest.mark.parametrize("text", VECTORS["accepted"])
def test_v11_t92_a_valid_template_is_accepted_and_matches_itself_if_it_has_no_expression(text: str) -> None:
    assert UriTemplate(text).match(text) or "{" in text


@pytest.mark.parametrize(("template", "topic", "expected"), VECTORS["matches"])
def test_v12_t92_the_consequences_of_the_semantics(template: str, topic: str, expected: bool) -> None:
    assert UriTemplate(template).match(topic) is expected


def test_v13_n36_the_number_of_variables_is_bounded() -> None:
    for template in ("{a}" * 101, "{" + ",".join("a" * 101) + "}", "{a,b}" * 51):
        with pytest.raises(PatternError, match="more than 100 variables"):
            UriTemplate(template)
    for template in ("{a}" * 100, "{" + ",".join("a" * 100) + "}", "{a,b}" * 50, "," * 500):
        UriTemplate(template)


def test_equal_patterns_are_equal() -> None:
    assert UriTemplate("/{a}") == UriTemplate("/{a}")
    assert len({UriTemplate("/{a}"), UriTemplate("/{a}"), UriTemplate("/{b}")}) == 2


# -- agreement

NAMES = st.sampled_from(["a", "b", "c.d", "%41"])
VARIABLES = st.builds(str.__add__, NAMES, st.sampled_from(["", "", "*", ":1"]))
EXPRESSIONS = st.builds(
    lambda operator, variables: "{" + operator + ",".join(variables) + "}",
    st.sampled_from(["", "+", "#", ".", "/", ";", "?", "&"]),
    st.lists(VARIABLES, min_size=1, max_size=3),
)
LITERALS = st.sampled_from(["/", "a", "-", "%41", "=", ".", "é", "1", "aa", "#", "?", "&", ";", ","])
TEMPLATES = st.lists(EXPRESSIONS | LITERALS, max_size=4).map("".join)
TOPICS = st.lists(
    st.sampled_from(["/", "a", "1", "%41", "%", "4", "=", ".", "é", ",", "#", "?", "&", ";", "-", " ", "\n"]),
    max_size=7,
).map("".join)


def by_definition(template: str) -> re.Pattern[str]:
    """The regular expression of the specification, literally: exponential, and so for
    short topics only.
    """
    triplet, unreserved, reserved = "%[0-9A-Fa-f]{2}", r"A-Za-z0-9\-._~", r"!#$&'()*+,/:;=?@\[\]"
    separators = {"": ",", "+": ",", "#": ",", ".": ".", "/": "/", ";": ";", "?": "&", "&": "&"}
    pattern = ""
    for part in re.findall(r"\{[^}]*\}|[^{]+", template):
        if not part.startswith("{"):
            pattern += re.escape(part)
            continue
        operator = part[1] if part[1] in separators else ""
        explodes = [variable.endswith("*") for variable in part[1:-1].split(",")]
        first, separator = operator.replace("+", ""), separators[operator]

        def members(equals: bool, operator: str = operator) -> str:
            if operator in ("+", "#"):
                return f"(?:[{unreserved}{reserved}]|{triplet})*"
            return f"(?:[{unreserved},{'=' if equals else ''}]|{triplet})*"

        named = operator in (";", "?", "&") and operator != ""
        more = "*" if any(explodes) else f"{{0,{len(explodes) - 1}}}"
        repeat = f"(?:{re.escape(separator)}{members(named or any(explodes))}){more}"
        repeat = repeat if len(explodes) > 1 or explodes[0] else ""
        pattern += f"(?:{re.escape(first)}{members(named or explodes[0])}{repeat})?"
    return re.compile(pattern)


@given(TEMPLATES, TOPICS)
def test_v12_the_matcher_agrees_with_the_definition(template: str, topic: str) -> None:
    assert UriTemplate(template).match(topic) == bool(by_definition(template).fullmatch(topic))


VALUES = st.text(st.sampled_from("aé/ %,=:~!\U0001f600"), max_size=3)


ANYTHING = VALUES | st.lists(VALUES, max_size=3) | st.dictionaries(VALUES, VALUES, max_size=3)
VARIABLE_SETS = st.fixed_dictionaries({}, optional=dict.fromkeys(["a", "b", "c.d", "%41"], ANYTHING))


@given(TEMPLATES, VARIABLE_SETS)
def test_v12_v14_the_expansions_of_a_template_match_it(template: str, variables: dict[str, Any]) -> None:
    # RFC 6570, section 2.4.1 does not define the prefix of a list, so variables with a
    # prefix get strings.
    for name, value in variables.items():
        if name + ":1" in template and not isinstance(value, str):
            variables[name] = "".join(value)
    # If a variable is left out before one that explodes into pairs, a pair comes first,
    # and `{a,b*}` does not match k=v.  So no variable is left out if there are pairs.
    if any(isinstance(value, dict) for value in variables.values()):
        variables = {name: variables.get(name) or "" for name in ("a", "b", "c.d", "%41")}
    assert UriTemplate(template).match(uritemplate.expand(template, variables))


@pytest.mark.parametrize(
    ("template", "topic", "expected"),
    [
        ("/books/{id}", "/books/4%202", {"id": "4 2"}),
        ("/books/{id}", "/films/42", {}),
        ("/books/{id}{?page,q}", "/books/42?q=b", {"id": "42", "q": "b"}),
        ("{/path*}", "/a/b", {"path": "a/b"}),
        ("{/a,b}", "/1/2", {"a": "1", "b": "2"}),
        ("{a}{b}", "xy", {"a": "xy"}),
        ("{+a}/{b}/{c}", "/1/2/3/4", {"a": "/1/2", "b": "3", "c": "4"}),
        ("/{id:2}/{id}", "/12/1234", {"id": "1234"}),
        ("/{id}/{id:2}", "/1234/12", {"id": "1234"}),
        ("/{a:1,b*}", "/1,2,3", {"a": "1", "b": "2,3"}),
        ("{?q*}", "?q=1&q=2&x=3", {"q": "q=1&q=2&x=3"}),
        ("{?a,q*}", "?a=0&x=1&y=2", {"a": "0", "q": "x=1&y=2"}),
        ("{?a}", "?b=1", {}),
        ("{;a,b}", ";a;b=2", {"a": "", "b": "2"}),
        ("é{#a}", "é#%c3%a9/", {"a": "é/"}),
        ("{+a}b{.c}", "bb.bbbb", {"a": "bb.bbb"}),
        ("/{+a}x{b}", "/1x%782x", {"a": "1xx2"}),
    ],
)
def test_the_variables_of_a_topic(template: str, topic: str, expected: dict[str, str]) -> None:
    assert UriTemplate(template).variables(topic) == expected


@given(
    st.lists(st.sampled_from(["", "+", "#", ".", "/", ";", "?", "&"]), max_size=3),
    st.lists(st.sampled_from(["/", "/a", "é", "?"]), min_size=3, max_size=3),
    st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), VALUES),
)
def test_a_template_expands_from_the_variables_of_a_topic_to_the_topic(
    operators: list[str], literals: list[str], values: dict[str, Any]
) -> None:
    expressions = [f"{{{operator}{names}}}" for operator, names in zip(operators, ["a", "b,c", "d"], strict=False)]
    template = "".join(expression + literal for expression, literal in zip(expressions, literals, strict=False))
    topic = uritemplate.expand(template, values)
    # A literal comes after each expression, because in `{;a}{b}` the first could read
    # what the second wrote.
    variables: dict[str, Any] = dict(UriTemplate(template).variables(topic))
    assert unquote(uritemplate.expand(template, variables)) == unquote(topic)


@given(st.text(max_size=20), st.text(max_size=20))
def test_any_text_is_refused_or_matched_without_an_error(template: str, topic: str) -> None:
    try:
        matcher = UriTemplate(template)
    except PatternError:
        return
    assert matcher.match(topic) in (True, False)
    assert matcher.match(topic) or not matcher.variables(topic)


def test_a_lone_surrogate_in_a_topic_is_an_ordinary_mismatch() -> None:
    assert not UriTemplate("/{a}").match("/\ud800")


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Return the number of operations on whole sets of positions since the last call: a
    count, not a time.
    """
    count = 0
    star = uri_template.Subject._star

    def counted(self: uri_template.Subject, table: bytes, cursors: int) -> int:
        nonlocal count
        count += 1
        return star(self, table, cursors)

    def since() -> int:
        nonlocal count
        count, counted_so_far = 0, count
        return counted_so_far

    monkeypatch.setattr(uri_template.Subject, "_star", counted)
    return since


@pytest.mark.parametrize(
    ("template", "topic"),
    [
        ("{a*}", "," * 2000 + "!"),
        ("".join(f"{{v{n}}}" for n in range(100)), "a" * 2000 + "!"),
        ("".join(f"{{v{n}}}x" for n in range(100)), "x" * 2000 + "!"),
        ("{" + ",".join(f"v{n}" for n in range(100)) + "}", ",a" * 1000 + "!"),
        ("{/" + ",".join(f"v{n}" for n in range(100)) + "}!", "/a" * 1000),
        ("{/a*}" * 100 + "!", "/" * 2000),
    ],
)
def test_v13_n36_templates_that_explode_under_backtracking_take_bounded_steps(
    template: str, topic: str, steps: Callable[[], int]
) -> None:
    assert not UriTemplate(template).match(topic)
    assert steps() <= 2 * template.count("{") + template.count(",")


def test_v13_n36_the_number_of_steps_does_not_depend_on_the_topic(steps: Callable[[], int]) -> None:
    counts = []
    for length in (10, 100, 1000):
        assert UriTemplate("{/a*}{?b*}{#c}").match("/a" * length)
        counts.append(steps())
    assert counts[0] == counts[1] == counts[2] > 0
