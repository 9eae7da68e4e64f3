"""Expressions and criteria as JSON, for rules that live in a database.

    all_of(one_of("currency", "USD"), not_(at_least("order.total", Decimal("1.50"))))

    {"all_of": [{"one_of": ["currency", "USD"]},
                {"not_": [{"at_least": ["order.total", {"Decimal": "1.50"}]}]}]}

An expression is an object with the name of its function, and a list of the arguments.
A list of criteria is a list; a field with its content is a list of two.  A value that
JSON does not have is an object with the name of its class.

`from_json` calls the functions, so it refuses what they refuse.
"""

from __future__ import annotations

import json
import math
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

from skipfilter.errors import LimitError
from skipfilter.fields import expressions
from skipfilter.fields.criteria import parse_criteria
from skipfilter.fields.expressions import FUNCTIONS, MAX_DEPTH, AllOf, AnyOf, Not, OneOf, Prefix, Present, is_expression
from skipfilter.text import brief

if TYPE_CHECKING:
    from collections.abc import Callable

    from skipfilter.fields.criteria import Criterion
    from skipfilter.fields.expressions import Expression, Range

_OF_PARTS: Final = ("all_of", "any_of", "not_")
_VALUES: Final[Mapping[str, tuple[type, Callable[[Any], object], Callable[[Any], Any]]]] = {
    # class -> how its text is written, and read
    "datetime": (datetime, datetime.isoformat, datetime.fromisoformat),  # before date: it is one
    "date": (date, date.isoformat, date.fromisoformat),
    "time": (time, time.isoformat, time.fromisoformat),
    "timedelta": (timedelta, lambda one: [one.days, one.seconds, one.microseconds], lambda three: timedelta(*three)),
    "Decimal": (Decimal, str, Decimal),
    "Fraction": (Fraction, str, Fraction),
    "bytes": (bytes, lambda one: b64encode(one).decode(), lambda text: b64decode(text, validate=True)),
    "float": (float, str, float),  # infinity; others are numbers of JSON
}


def to_json(declared: Expression | Iterable[Criterion]) -> str:
    """Return an expression, or a list of criteria, as JSON.

    Takes O(parts and values).  Raises ValueError if a value is of a class that is not
    one of Python's usual ones: those of numbers, texts, bytes, dates and times, and
    tuples and frozensets of them.

    >>> from skipfilter.fields import at_least, not_, one_of
    >>> print(to_json(one_of("state", "new") & ~at_least("total", 5)))
    {"all_of": [{"one_of": ["state", "new"]}, {"not_": [{"at_least": ["total", 5]}]}]}
    >>> print(to_json(["urgent", ("currency", "USD")]))
    ["urgent", ["currency", "USD"]]
    """
    if is_expression(declared):
        return json.dumps(_written(declared), allow_nan=False)
    if isinstance(declared, Iterator):
        raise ValueError(f"{brief(declared)} is no expression, and no list: to_json takes what one value declares")
    criteria = parse_criteria(declared)  # type: ignore[arg-type]
    if isinstance(declared, frozenset):  # as a filter returns it: in an order of its own
        criteria = tuple(sorted(criteria, key=repr))
    return json.dumps([one if isinstance(one, str) else [one[0], _value(one[1])] for one in criteria], allow_nan=False)


def from_json(text: str | bytes | Mapping[str, Any] | list[Any]) -> Expression | list[Criterion]:
    """Return the expression, or the list of criteria, that `to_json` has written.

    Takes O(its length).  `text` may be what a database has parsed already.  Raises
    ValueError if it is no JSON, or has an unknown part, which the error names;
    LimitError if it is deeper than MAX_DEPTH; and the errors of the functions.

    >>> from_json('{"one_of": ["currency", "USD"]}')
    one_of('currency', 'USD')
    """
    document: Any = text
    if isinstance(text, (str, bytes, bytearray)):
        try:
            document = json.loads(text, object_pairs_hook=_once)
        except RecursionError:
            raise LimitError(f"the expression is deeper than {MAX_DEPTH}") from None
        except json.JSONDecodeError as error:
            raise ValueError(f"{brief(text)} is not JSON: {error}") from None
    if isinstance(document, list):
        criteria = [_criterion(one) for one in document]
        parse_criteria(criteria)
        return criteria
    return _read(document, 1)


# -- writing


def _written(expression: Expression) -> dict[str, list[Any]]:
    match expression:
        case AllOf(parts):
            return {"all_of": [_written(part) for part in parts]}
        case AnyOf(parts):
            return {"any_of": [_written(part) for part in parts]}
        case Not(part):
            return {"not_": [_written(part)]}
        case Present(field):
            return {"present": [field]}
        case OneOf(field, values):
            return {"one_of": [field, *map(_value, values)]}
        case Prefix(field, text):
            return {"prefix": [field, text]}
        case _:
            return _range(expression)


def _range(part: Range) -> dict[str, list[Any]]:
    if part.low is not None and part.high is not None:
        return {"between": [part.field, _value(part.low[0]), _value(part.high[0])]}
    if part.low is not None:
        return {"above" if part.low[1] else "at_least": [part.field, _value(part.low[0])]}
    assert part.high is not None
    return {"below" if part.high[1] else "at_most": [part.field, _value(part.high[0])]}


def _value(value: Any) -> Any:
    """Return a value as JSON has it."""
    if value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, (tuple, frozenset)):
        return {type(value).__name__: [_value(one) for one in value]}
    for name, (kind, write, read) in _VALUES.items():
        if isinstance(value, kind):
            written = write(value)
            if read(written) != value:
                raise ValueError(f"{brief(value)} would be another value when it is read from JSON again")
            return {name: written}
    raise ValueError(f"{brief(value)} is of type {type(value).__name__}, which has no form as JSON")


# -- reading


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object.  Raises ValueError if it has a name twice."""
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError(f"{brief([name for name, _ in pairs])}: a name comes twice in an object")
    return made


def _read(document: Any, depth: int) -> Expression:
    if depth > MAX_DEPTH:
        raise LimitError(f"the expression is deeper than {MAX_DEPTH}")
    name, arguments = _only(document, 'an expression, such as {"present": ["field"]}')
    if name not in FUNCTIONS:
        raise ValueError(f"{brief(name)} is none of {', '.join(FUNCTIONS)}")
    if not isinstance(arguments, list):
        raise ValueError(f"{name}: {brief(arguments)} is not a list of arguments")
    if name in _OF_PARTS:
        arguments = [_read(part, depth + 1) for part in arguments]
    else:
        arguments = [*arguments[:1], *map(_content, arguments[1:])]
    try:
        made: Expression = getattr(expressions, name)(*arguments)
    except TypeError as error:  # their number is wrong
        raise ValueError(f"{name}: {error}") from None
    return made


def _criterion(document: Any) -> Criterion:
    match document:
        case str():
            return document
        case [str() as field, value]:
            return field, _content(value)
        case _:
            raise ValueError(f"criterion {brief(document)}: neither a field nor a [field, value]")


def _content(document: Any, depth: int = 1) -> Any:
    """Return the value that `_value` has written so."""
    if depth > MAX_DEPTH:
        raise LimitError(f"a value is deeper than {MAX_DEPTH}")
    if not isinstance(document, (dict, list)):
        return document
    name, content = _only(document, 'a value, such as 5 or {"date": "2026-11-29"}')
    if name in ("tuple", "frozenset") and isinstance(content, list):
        its = [_content(one, depth + 1) for one in content]
        return tuple(its) if name == "tuple" else frozenset(its)
    if name not in _VALUES:
        raise ValueError(f"{brief(name)} is none of {', '.join(_VALUES)}, tuple, frozenset")
    try:
        return _VALUES[name][2](content)
    except (TypeError, ValueError, ArithmeticError) as error:
        raise ValueError(f"{brief(content)} is no {name}: {error}") from None


def _only(document: Any, what: str) -> tuple[str, Any]:
    """Return the only item of an object."""
    if not isinstance(document, Mapping) or len(document) != 1:
        raise ValueError(f"{brief(document)} is not {what}")
    [(name, content)] = document.items()
    return name, content
