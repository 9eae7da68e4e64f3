"""Criteria: fields that must be there, and fields with a required content, in a list.

    ["urgent", ("currency", "USD"), ("currency", "EUR")]

Criteria of one field are alternatives.  All of them are met if these parts hold:

    present("urgent")   one_of("currency", "USD", "EUR")
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Final, TypeAlias

from skipfilter.errors import LimitError
from skipfilter.fields.expressions import (
    FUNCTIONS,
    OneOf,
    Present,
    check_field,
    how_to_write,
    is_comparison,
    is_expression,
    why_no_content,
)
from skipfilter.fields.messages import python_scalar
from skipfilter.text import brief

if TYPE_CHECKING:
    from skipfilter.fields.expressions import Clause, Literal
    from skipfilter.fields.messages import Row

Criterion: TypeAlias = str | tuple[str, Hashable]
"""A field that must be present, or a field and its required content."""

MAX_CRITERIA: Final = 100
"""The maximum number of criteria of one value."""


def parse_criteria(criteria: Iterable[Criterion]) -> tuple[Criterion, ...]:
    """Return the criteria, in their order, without repeats.

    Raises ValueError if an item is not a criterion, or its value is not equal to
    itself, such as NaN; and LimitError if there are more than MAX_CRITERIA, or a path
    is too long.
    """
    if isinstance(criteria, Mapping) and not any(name in FUNCTIONS for name in criteria):
        raise ValueError(f"criteria {brief(criteria)}: not a list; write list(criteria.items()), or an expression")
    if isinstance(criteria, (str, bytes, Mapping)) or not isinstance(criteria, (Sequence, AbstractSet, Iterator)):
        raise ValueError(f"criteria {brief(criteria)}: not a list; {how_to_write(criteria)}")
    if isinstance(criteria, tuple) and len(criteria) == 2 and all(isinstance(one, str) for one in criteria):
        how = f"write [{brief(criteria)}], or {brief(list(criteria))} for two fields"
        raise ValueError(f"criteria {brief(criteria)}: not a list; {how}")
    parsed: dict[Criterion, None] = {}
    for criterion in criteria:
        match criterion:
            case str() if not is_comparison(criterion):
                parsed[check_field(criterion)] = None
            case (str() as name, value):
                check_field(name)
                if (reason := why_no_content(value)) is not None:
                    raise ValueError(f"criterion {brief(criterion)}: {reason}")
                parsed[name, python_scalar(value)] = None
            case _ if is_expression(criterion):
                raise ValueError(f"criterion {brief(criterion)}: an expression; write all_of() instead of a list")
            case _:
                raise ValueError(
                    f"criterion {brief(criterion)}: neither a field nor a (field, value); {how_to_write(criterion)}"
                )
        if len(parsed) > MAX_CRITERIA:
            raise LimitError(f"there are more than {MAX_CRITERIA} criteria")
    return tuple(parsed)


def clause_of(criteria: Iterable[Criterion]) -> Clause:
    """Return the clause of a list of criteria, all of which must be met.

    Criteria of one field are alternatives.
    """
    fields: list[Literal] = []
    contents: dict[str, Row | OneOf] = {}
    for criterion in criteria:
        if isinstance(criterion, str):
            fields.append((criterion,))
        elif (known := contents.setdefault(criterion[0], criterion)) is not criterion:
            before = known.values if isinstance(known, OneOf) else known[1:]
            contents[criterion[0]] = OneOf(criterion[0], (*before, criterion[1]))
    return frozenset([*fields, *contents.values()])


def parts_of_list(clause: Clause) -> list[Present | OneOf]:
    """Return the parts of the clause of a list of criteria, in the order of fields."""
    parts: list[Present | OneOf] = []
    for literal in clause:
        match literal:
            case (str() as name,):
                parts.append(Present(name))
            case (str() as name, value):
                parts.append(OneOf(name, (value,)))
            case OneOf():
                parts.append(literal)
    return sorted(parts, key=lambda part: (part.field, isinstance(part, OneOf)))
