"""Expressions: what a value wants of the fields of a message.

    all_of(
        one_of("currency", "USD", "GBP"),
        any_of(at_least("order.total", 1_000), present("urgent")),
        not_(prefix("customer", "test-")),
    )

A part is about one field.  A field is a name, or a path of names with dots between:
`order.total` is the field `total` of the message that is in the field `order`.  A list
or a set in a message means several values, and a part holds if it holds for one of
them.

| part | holds if a value of the field |
|---|---|
| `present(field)` | is there, whatever it is |
| `one_of(field, *values)` | is equal to one of `values`, as keys of a dict are |
| `prefix(field, text)` | is a str that begins with `text` |
| `at_least`, `above`, `at_most`, `below` `(field, bound)` | is ordered so |
| `between(field, low, high)` | is at least `low` and at most `high` |

1, 1.0 and True are equal, and so they are in an order, with Decimal and Fraction.  A
value that cannot be ordered with the bound, such as a text with a number, or a missing
date (NaT), is not: the part does not hold, and nothing is raised.  `not_(part)` holds
whenever the part does not, also if there is no such field.

A scalar of numpy counts as the equal one of Python.  A datetime64 or timedelta64 in
nanoseconds has no equal, and no order; a Timestamp of pandas has.

A FieldFilter compiles an expression to clauses.  A clause is a set of parts, some of
them negated, and holds if all of them hold; the expression holds if any clause does.

    all_of(a, any_of(b, not_(c)))   ->   {a, b}   {a, not c}
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from itertools import chain
from numbers import Integral, Real
from operator import index
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeGuard

from skipfilter.errors import LimitError
from skipfilter.fields.messages import MAX_NAMES, MAX_PATH, Plan, has_hash, python_scalar
from skipfilter.text import brief

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable

    from skipfilter.fields.messages import Message, Row

MAX_DEPTH: Final = 20
"""The maximum depth of an expression."""
MAX_PARTS: Final = 1_000
"""The maximum number of parts and values of an expression."""
MAX_CLAUSES: Final = 100
"""The maximum number of clauses that an expression is compiled to."""
MAX_LITERALS: Final = 10_000
"""The maximum number of parts of all these clauses together."""


FUNCTIONS: Final = (
    "present",
    "one_of",
    "prefix",
    "at_least",
    "above",
    "at_most",
    "below",
    "between",
    "all_of",
    "any_of",
    "not_",
)
"""The functions that make expressions."""


class _Combined:
    """`a & b`, `a | b` and `~a` are all_of(a, b), any_of(a, b) and not_(a)."""

    __slots__ = ()

    def __and__(self, other: Expression) -> Expression:
        """Return an expression that holds if both do."""
        return AllOf((*_parts_of(_part(self), AllOf), *_parts_of(_part(other), AllOf)))

    def __or__(self, other: Expression) -> Expression:
        """Return an expression that holds if one of both does."""
        return AnyOf((*_parts_of(_part(self), AnyOf), *_parts_of(_part(other), AnyOf)))

    def __rand__(self, other: object) -> Expression:
        """Refuse what is no expression."""
        return AllOf((_part(other), _part(self)))

    def __ror__(self, other: object) -> Expression:
        """Refuse what is no expression."""
        return AnyOf((_part(other), _part(self)))

    def __invert__(self) -> Expression:
        """Return an expression that holds if this one does not."""
        return self.part if isinstance(self, Not) else Not(_part(self))

    def __bool__(self) -> bool:
        """Refuse `a and b`, which Python would reduce to one of them."""
        raise TypeError("an expression is not true or false by itself; write a & b, a | b and ~a, with brackets")


@dataclass(frozen=True, slots=True, repr=False)
class Present(_Combined):
    """The field is there."""

    field: str

    def holds(self, message: Message) -> bool:
        """Return whether the field is there."""
        return (self.field,) in message.rows

    def __repr__(self) -> str:
        return f"present({self.field!r})"


@dataclass(frozen=True, slots=True, repr=False)
class OneOf(_Combined):
    """A value of the field is one of `values`."""

    field: str
    values: tuple[Hashable, ...]
    """Without repeats, in the caller's order."""

    def holds(self, message: Message) -> bool:
        """Return whether a value of the field is one of these."""
        return any((self.field, value) in message.rows for value in self.values)

    def __repr__(self) -> str:
        return f"one_of({', '.join(map(repr, (self.field, *self.values)))})"


@dataclass(frozen=True, slots=True, repr=False)
class Prefix(_Combined):
    """A value of the field begins with `text`."""

    field: str
    text: str

    def holds(self, message: Message) -> bool:
        """Return whether a value of the field begins with the text."""
        # `any` with a generator takes twice as long, here and below.
        for value in message.fields.get(self.field, ()):
            if isinstance(value, str) and value.startswith(self.text):
                return True
        return False

    def __repr__(self) -> str:
        return f"prefix({self.field!r}, {self.text!r})"


@dataclass(frozen=True, slots=True, repr=False)
class Range(_Combined):
    """A value of the field is between two bounds, or above or below one."""

    field: str
    order: str
    """The kind of values that can be ordered with the bounds; see `ordered`."""
    low: tuple[Any, int] | None
    """The lower bound, and 0 if it is in the range, or 1 if only values above are."""
    high: tuple[Any, int] | None
    """The upper bound, and 0 if it is in the range, or -1 if only values below are."""

    def holds(self, message: Message) -> bool:
        """Return whether a value of the field is in the range."""
        for value in message.fields.get(self.field, ()):
            order = ordered(value)
            if order is not None and order[0] == self.order and self._has(order[1]):
                return True
        return False

    def _has(self, value: Any) -> bool:
        return (self.low is None or self.low <= (value, 0)) and (self.high is None or (value, 0) <= self.high)

    def __repr__(self) -> str:
        if self.high is None:
            assert self.low is not None
            return f"{'above' if self.low[1] else 'at_least'}({self.field!r}, {self.low[0]!r})"
        if self.low is None:
            return f"{'below' if self.high[1] else 'at_most'}({self.field!r}, {self.high[0]!r})"
        return f"between({self.field!r}, {self.low[0]!r}, {self.high[0]!r})"


@dataclass(frozen=True, slots=True, repr=False)
class AllOf(_Combined):
    """All parts hold."""

    parts: tuple[Expression, ...]

    def holds(self, message: Message) -> bool:
        """Return whether all parts hold."""
        return all(part.holds(message) for part in self.parts)

    def __repr__(self) -> str:
        return f"all_of({', '.join(map(repr, self.parts))})"


@dataclass(frozen=True, slots=True, repr=False)
class AnyOf(_Combined):
    """At least one of the parts holds."""

    parts: tuple[Expression, ...]

    def holds(self, message: Message) -> bool:
        """Return whether a part holds."""
        return any(part.holds(message) for part in self.parts)

    def __repr__(self) -> str:
        return f"any_of({', '.join(map(repr, self.parts))})"


@dataclass(frozen=True, slots=True, repr=False)
class Not(_Combined):
    """The part does not hold."""

    part: Expression

    def holds(self, message: Message) -> bool:
        """Return whether the part does not hold."""
        return not self.part.holds(message)

    def __repr__(self) -> str:
        return f"not_({self.part!r})"


Part: TypeAlias = Present | OneOf | Prefix | Range
"""An expression about one field."""
Expression: TypeAlias = Part | AllOf | AnyOf | Not
"""What the functions of this module return.  It is equal to another one that is written
the same, and can be hashed."""
Literal: TypeAlias = "Row | Part | Not"
"""What must hold: a row, which is a short form of `present` or of `one_of` with one
value; any other part; or the negation of a part.
"""
Clause: TypeAlias = frozenset[Literal]
"""Literals that must hold, all of them."""


@dataclass(frozen=True, slots=True)
class PartExplanation:
    """Whether a part of an expression, or a criterion, holds, and why.

    >>> print(PartExplanation(Not(Present("test")), "test is True"))
    not_(present('test')) does not hold: test is True
    """

    part: Part | Not
    """The part as it must be, negated if `not_` negates it."""
    reason: str | None
    """Why it does not hold.  None means that it does."""

    def __str__(self) -> str:
        return f"{self.part!r} holds" if self.reason is None else f"{self.part!r} does not hold: {self.reason}"


# -- written by people


def present(field: str) -> Expression:
    """Return an expression that holds if the message has this field.

    Takes O(1).  Raises ValueError if the field is not a path of at most MAX_NAMES
    names.
    """
    return Present(check_field(field))


def one_of(field: str, *values: Hashable) -> Expression:
    """Return an expression that holds if a value of the field is one of `values`.

    Takes O(values).  A tuple is one value.  Raises ValueError for no value, and for one
    that is not equal to itself, such as NaN, or cannot be hashed.

    >>> one_of("currency", "USD", "GBP")
    one_of('currency', 'USD', 'GBP')
    """
    if not values:
        raise ValueError(
            f"one_of({brief(field)}) has no value; to ask for the field alone, write present({brief(field)})"
        )
    for value in values:
        if (reason := why_no_content(value)) is not None:
            raise ValueError(f"one_of({brief(field)}): {reason}")
    return OneOf(check_field(field), tuple(dict.fromkeys(map(python_scalar, values))))


def prefix(field: str, text: str) -> Expression:
    """Return an expression that holds if a value of the field is a str that begins with
    `text`.

    Takes O(1).  Raises ValueError if the text is not a str, or is empty.
    """
    if not isinstance(text, str) or not text:
        raise ValueError(f"prefix({brief(field)}): {brief(text)} is not a str with at least one character")
    return Prefix(check_field(field), text)


def at_least(field: str, bound: object) -> Expression:
    """Return an expression that holds if a value of the field is `bound` or more.

    Takes O(1).  Bounds are real numbers (those of numpy, too), str, bytes, date,
    timedelta, datetime, and time without a time zone.  Raises ValueError for others,
    for NaN, and for a text that is a number, such as "10".
    """
    return _range("at_least", field, low=(bound, 0))


def above(field: str, bound: object) -> Expression:
    """Return an expression that holds if a value of the field is more than `bound`.

    Takes O(1).  Bounds are as for `at_least`.
    """
    return _range("above", field, low=(bound, 1))


def at_most(field: str, bound: object) -> Expression:
    """Return an expression that holds if a value of the field is `bound` or less.

    Takes O(1).  Bounds are as for `at_least`.
    """
    return _range("at_most", field, high=(bound, 0))


def below(field: str, bound: object) -> Expression:
    """Return an expression that holds if a value of the field is less than `bound`.

    Takes O(1).  Bounds are as for `at_least`.
    """
    return _range("below", field, high=(bound, -1))


def between(field: str, low: object, high: object) -> Expression:
    """Return an expression that holds if a value of the field is at least `low` and at
    most `high`.

    Takes O(1).  If the field has several values, one of them must be both.  Bounds are
    as for `at_least`.  Raises ValueError too if they have no common order, or `high` is
    less than `low`.
    """
    return _range("between", field, (low, 0), (high, 0))


def all_of(*parts: Expression) -> Expression:
    """Return an expression that holds if all parts hold; without parts, always.

    Takes O(parts).  Raises ValueError if a part is not an expression.
    """
    return AllOf(tuple(map(_part, parts)))


def any_of(*parts: Expression) -> Expression:
    """Return an expression that holds if at least one part holds.

    Takes O(parts).  Raises ValueError if a part is not an expression, or there is none.
    """
    if not parts:
        raise ValueError("any_of() has no part, so it could never hold")
    return AnyOf(tuple(map(_part, parts)))


def not_(part: Expression) -> Expression:
    """Return an expression that holds if `part` does not.

    It also holds if the message does not have the field.  Takes O(1).  Raises
    ValueError if the part is not an expression.
    """
    return Not(_part(part))


def is_expression(something: object) -> TypeGuard[Expression]:
    """Return whether this is an expression."""
    return isinstance(something, (Present, OneOf, Prefix, Range, AllOf, AnyOf, Not))


# -- compiled


def clauses_of(expression: Expression) -> list[Clause]:
    """Return the clauses of an expression, without repeats.

    Raises LimitError if the expression has more than MAX_PARTS parts and values, is
    deeper than MAX_DEPTH, or has more than MAX_CLAUSES clauses or MAX_LITERALS parts in
    them; and ValueError if it can never hold, because each clause has a part and its
    negation.
    """
    parts = 0
    below: list[tuple[Expression, int]] = [(expression, 1)]
    for some, depth in below:
        parts += len(some.values) if isinstance(some, OneOf) else 1
        if parts > MAX_PARTS:
            raise LimitError(f"the expression has more than {MAX_PARTS:,} parts and values")
        if depth > MAX_DEPTH:
            raise LimitError(f"the expression is deeper than {MAX_DEPTH}")
        inner = (some.part,) if isinstance(some, Not) else some.parts if isinstance(some, (AllOf, AnyOf)) else ()
        below += [(part, depth + 1) for part in inner]
    clauses = [clause for clause in _clauses(expression, True) if not _is_impossible(clause)]
    if not clauses:
        raise ValueError(f"{expression!r:.200} can never hold")
    return clauses


def parts_of(expression: Expression, wanted: bool = True) -> list[Part | Not]:
    """Return the parts of an expression in their order, each as it must be.

    `wanted` is False for the negation of the expression.
    """
    match expression:
        case Not(part):
            return parts_of(part, not wanted)
        case AllOf(parts) | AnyOf(parts):
            return [inner for part in parts for inner in parts_of(part, wanted)]
        case _:
            return [expression if wanted else Not(expression)]


def explain(parts: Collection[Part | Not], message: Mapping[str, object]) -> list[PartExplanation]:
    """Return, for each part, whether it holds, and why."""
    its = Plan(map(field_of, parts)).read(message)
    return [PartExplanation(part, None if part.holds(its) else _content(part, its)) for part in parts]


def why_no_content(value: object) -> str | None:
    """Return why no field can be asked for the content `value`; None if it can."""
    if is_expression(value):
        return f"{brief(value)} is an expression, and no content; combine them with & and |"
    if callable(value):
        return f"{brief(value)} is a function or a class, and only values are compared"
    if type(value).__module__ == "re":
        return f"{brief(value)} is a regular expression, and only values are compared; there is prefix(field, text)"
    if isinstance(value, (list, set, range, Iterator, KeysView, ValuesView, ItemsView)):
        return f"{brief(value)} is a {type(value).__name__}; write one_of(field, *values)"
    if not has_hash(value):
        return f"{brief(value)} cannot be hashed"
    return None if is_itself(value) else f"{brief(value)} is not equal to itself"


def how_to_write(something: object) -> str:
    """Return, for an error message, how to write as an expression what is none."""
    match something:
        case str() if something.lstrip()[:1] in {"{", "["}:
            return "write from_json(text)"
        case Mapping() if any(name in FUNCTIONS for name in something):
            return "write from_json(mapping)"
        case str() if is_comparison(something):
            return f"write {_without_signs(something)}"
        case str():
            return f"write present({brief(something)})"
        case (str() as field, value):
            return f"write one_of({brief(field)}, {brief(value)})"
        case bool():
            return "== compares the expressions themselves; write one_of(field, value)"
        case _ if getattr(something, "__name__", None) in FUNCTIONS:
            return "call it, as in present(field)"
        case _ if callable(something):
            return "a predicate needs a SkipFilter"
        case Iterator():
            return "write *parts: the parts are arguments of their own"
        case list() | set() | frozenset() | tuple() if any(map(is_expression, something)):
            return "write *parts: the parts are arguments of their own"
        case _:
            return "write one_of(field, value), or another function of skipfilter.fields"


def is_comparison(text: str) -> bool:
    """Return whether a text has a sign that compares, as in other languages."""
    return any(sign in text for sign in "=<>")


def _without_signs(text: str) -> str:
    """Return how to write a comparison, such as total >= 100, as an expression."""
    start = min(text.find(sign) for sign in "=<>!" if sign in text)
    end = start + len(text[start:]) - len(text[start:].lstrip("=<>!"))
    field, operator, value = text[:start].strip(), text[start:end], text[end:].strip(" '\"")
    function = {">=": "at_least", "<=": "at_most", ">": "above", "<": "below"}.get(operator, "one_of")
    content = value if function != "one_of" and _is_numeral(value) else brief(value)
    part = f"{function}({brief(field)}, {content})"
    return f"not_({part})" if "!" in operator else part


def ordered(value: object) -> tuple[str, Any] | None:
    """Return the kind of values that `value` can be ordered with, and what to compare;
    None if it has no order.

    A datetime with a time zone is compared in UTC, because Python does not order those
    of one zone by time if the clocks are put back between them.
    """
    if isinstance(value, (int, float)):
        return ("number", value) if value == value else None  # NaN has no order
    if isinstance(value, (str, bytes)):
        return ("str" if isinstance(value, str) else "bytes"), value
    try:
        if isinstance(value, (date, time, timedelta)):
            return _moment(value)
        return _number(value) if isinstance(value, (Decimal, Real)) else None
    except Exception:  # whatever its own class raises: it has no order
        return None


def _number(value: Decimal | Real) -> tuple[str, Any] | None:
    """Return a number for `ordered`, as one of Python's own classes."""
    number: Any = value
    if isinstance(value, Integral):
        number = index(value)
    elif not isinstance(value, (Decimal, Fraction)):
        number = float(value)
    return ("number", number) if number == value else None


def _moment(value: date | time | timedelta) -> tuple[str, Any] | None:
    """Return a date, a time of day or a time span for `ordered`."""
    if not is_itself(value):  # NaT: a datetime that is missing
        return None
    if isinstance(value, timedelta):
        return "timedelta", value
    if isinstance(value, time):
        return ("time", value) if value.tzinfo is None else None
    if not isinstance(value, datetime):
        return "date", value
    return ("datetime", value) if value.utcoffset() is None else ("datetime in a zone", value.astimezone(UTC))


def is_itself(value: object) -> bool:
    """Return whether `value`, and each item of a tuple or frozenset, equals itself."""
    # A container with a NaN equals itself, because it compares items by identity first.
    if isinstance(value, (tuple, frozenset)):
        return all(map(is_itself, value))
    try:
        return bool(value == value)
    except Exception:  # whatever its own class raises, as pandas' NA does
        return False


def _clauses(expression: Expression, wanted: bool) -> list[Clause]:
    """Return the clauses of an expression, or of its negation if `wanted` is False."""
    match expression:
        case Not(part):
            return _clauses(part, not wanted)
        case AllOf(parts) | AnyOf(parts):
            inner = [_clauses(part, wanted) for part in parts]
            # By De Morgan, the negation of one is the other one of negated parts.
            if isinstance(expression, AnyOf) is wanted:
                return _few(dict.fromkeys(chain.from_iterable(inner)))
            # Parts of one clause first: each multiplies nothing.
            certain = [clauses[0] for clauses in inner if len(clauses) == 1]
            made = _few(dict.fromkeys([frozenset(chain.from_iterable(certain))]))
            for those in [clauses for clauses in inner if len(clauses) != 1]:
                made = _few(dict.fromkeys(one | other for one in made for other in those))
            return made
        case _:
            literal = as_literal(expression)
            return [frozenset([literal if wanted else Not(expression)])]


def field_of(literal: Literal) -> str:
    """Return the field that a literal is about."""
    if isinstance(literal, tuple):
        return literal[0]  # type: ignore[return-value]
    part: Any = literal.part if isinstance(literal, Not) else literal
    field: str = part.field
    return field


def vars_of(part: Part | Not) -> tuple[object, ...]:
    """Return what a part consists of."""
    while isinstance(part, Not):
        part = part.part  # type: ignore[assignment]
    if isinstance(part, Range):
        return part.low, part.high
    return (part.text,) if isinstance(part, Prefix) else (part.values,) if isinstance(part, OneOf) else ()


def as_literal(part: Part) -> Literal:
    """Return a part, or the row that says the same."""
    if isinstance(part, Present):
        return (part.field,)
    if isinstance(part, OneOf) and len(part.values) == 1:
        return part.field, part.values[0]
    return part


def _few(clauses: dict[Clause, None]) -> list[Clause]:
    """Return the clauses.  Raises LimitError if they are too many, or too large."""
    if len(clauses) > MAX_CLAUSES:
        raise LimitError(f"the expression has more than {MAX_CLAUSES} clauses: it is any of too many all_of")
    if sum(map(len, clauses)) > MAX_LITERALS:
        raise LimitError(f"the clauses of the expression have more than {MAX_LITERALS:,} parts")
    return list(clauses)


def _is_impossible(clause: Clause) -> bool:
    """Return whether a clause has a part and its negation."""
    return any(isinstance(one, Not) and as_literal(one.part) in clause for one in clause)  # type: ignore[arg-type]


def _parts_of(expression: Expression, kind: type[AllOf | AnyOf]) -> tuple[Expression, ...]:
    """Return the parts of an expression of this kind, and any other as its own part."""
    return expression.parts if isinstance(expression, kind) else (expression,)


def _part(part: object) -> Expression:
    if is_expression(part):
        return part
    raise ValueError(f"{brief(part)} is not an expression; {how_to_write(part)}")


def _content(part: Part | Not, message: Message) -> str:
    """Return what is in the field of a part, for a person to read."""
    while isinstance(part, Not):
        part = part.part  # type: ignore[assignment]
    field = part.field
    values = message.fields.get(field)
    if not values:
        return f"{field} has no value of its own" if (field,) in message.rows else f"there is no field {field}"
    shown = " and ".join(map(brief, values[:3]))
    more = f" and {len(values) - 3} more" if len(values) > 3 else ""
    return f"{field} is {shown}{more}{_other_type(part, values[0])}"


def _other_type(part: Part, value: object) -> str:
    """Return, for a person to read, that only the type of a value is another one."""
    if isinstance(part, Range):
        order = ordered(value)
        bound: Any = (part.low or part.high or (None,))[0]
        if order is not None and {order[0], part.order} == {"datetime", "datetime in a zone"}:
            return f", and one of it and {brief(bound)} has no time zone"
        if order is None or order[0] != part.order:
            return f", of type {type(value).__name__}, which has no order with {brief(bound)}"
    elif isinstance(part, Prefix):
        return "" if isinstance(value, str) else f", of type {type(value).__name__}, and only a str has a beginning"
    elif isinstance(part, OneOf):
        alike = [one for one in part.values if type(one) is not type(value) and _spelt(one) == _spelt(value)]
        if alike:
            return f", of type {type(value).__name__}, and not the {type(alike[0]).__name__} {brief(alike[0])}"
    return ""


def _spelt(value: object) -> str:
    """Return a value as somebody may have written it: True as true, b"x" as x."""
    return (value.decode("latin-1") if isinstance(value, bytes) else str(value)).casefold()


def check_field(field: object) -> str:
    """Return a path of names.

    Raises ValueError if it is not a str, or a name is empty, and LimitError if it is
    too long.
    """
    if not isinstance(field, str):
        raise ValueError(f"{brief(field)} is not the name of a field, or a path such as 'order.total'")
    if is_comparison(field) or "[" in field or "]" in field or field.startswith("$."):
        how = how_to_write(field) if is_comparison(field) else "all items of a list count"
        raise ValueError(f"the path {brief(field)} is more than names with dots between; {how}")
    if not all(map(str.strip, field.split("."))):
        raise ValueError(f"the path {brief(field)} has an empty name; a path is written as 'order.total'")
    if field.count(".") >= MAX_NAMES:
        raise LimitError(f"the path {brief(field)} has more than {MAX_NAMES} names")
    if len(field) > MAX_PATH:
        raise LimitError(f"the path {brief(field)} has more than {MAX_PATH:,} characters")
    return field


def _range(
    function: str, field: str, low: tuple[object, int] | None = None, high: tuple[object, int] | None = None
) -> Range:
    """Return the range between two bounds, one of which may be None; see `Range`."""
    name = f"{function}({brief(check_field(field))})"
    ends: list[tuple[Any, int] | None] = []
    orders: set[str] = set()
    for bound in (low, high):
        if bound is None:
            ends.append(None)
        elif _is_numeral(bound[0]):
            raise ValueError(f"{name}: {brief(bound[0])} is a text, and no number has an order with it; write a number")
        elif (order := ordered(python_scalar(bound[0]))) is not None:
            ends.append((order[1], bound[1]))
            orders.add(order[0])
        else:
            kinds = "numbers, str, bytes, dates, datetimes, timedeltas, and times without a time zone"
            raise ValueError(f"{name}: {brief(bound[0])} has no order; bounds are {kinds}")
    if low is not None and high is not None:
        if len(orders) > 1:
            raise ValueError(f"{name}: {brief(low[0])} and {brief(high[0])} have no common order")
        if ends[1] < ends[0]:  # type: ignore[operator]
            raise ValueError(f"{name}: there is nothing between {brief(low[0])} and {brief(high[0])}")
    return Range(field, orders.pop(), *ends)


def _is_numeral(bound: object) -> bool:
    """Return whether a text is a number, perhaps with a sign that people write.

    The order of texts is by characters, so "9" is more than "10".
    """
    text = bound.decode("latin-1") if isinstance(bound, bytes) else bound
    if not isinstance(text, str) or not (text := text.strip(" $€£¥%<>=").replace(",", "")) or text[0].isalpha():
        return False
    try:
        float(text)
    except ValueError:
        return False
    return True
