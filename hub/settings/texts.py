"""The forms of settings that are texts, and the sentences for wrong settings."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator, TypeAdapter, ValidationError

from hub.settings.quantities import Unit
from hub.settings.variable_names import nearest
from skipfilter.text import brief

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from pydantic import BaseModel
    from pydantic.fields import FieldInfo
    from pydantic_core import ErrorDetails


def text_like(pattern: str, description: str, *, is_url: bool = False) -> AfterValidator:
    """Return a pydantic validator for texts that match `pattern` as a whole.

    The error message has `description` instead of the pattern.  If `is_url` is true,
    the text must also be a URL that can be split into its parts.
    """

    def check(text: str) -> str:
        try:
            if is_url:
                _ = urlsplit(text).port  # raises ValueError if a bracket is missing or the port is too large
            fits = re.fullmatch(pattern, text) is not None
        except ValueError:
            fits = False
        if not fits:
            raise ValueError(f"should be {description}")
        return text

    return AfterValidator(check)


def is_true(value: object) -> bool:
    """Return `value` as a bool, or False if it is not one.

    No error is needed here: the validation of the field itself reports the value.
    """
    try:
        return TypeAdapter(bool).validate_python(value)
    except ValidationError:
        return False


def sentences(error: ValidationError, model: type[BaseModel], values: Mapping[str, Any]) -> str:
    """Return one line that says which of the `values` for a model are wrong, and why.

    The texts of pydantic are not used.  The value of a secret is left out.
    """
    sentences = []
    for each in error.errors(include_url=False):
        where = each["loc"]
        field = model.model_fields.get(str(where[0])) if where else None
        is_shown_item = field is not None and field.repr and len(where) == 2 and isinstance(each["input"], str)
        # The value of an item is shown, so its number is not needed.
        name = str(where[0]) if is_shown_item else ".".join(map(str, where))
        if each["type"] == "extra_forbidden":
            meant = nearest(name, model.model_fields)
            sentences.append(f"{name}: there is no such setting{f': did you mean {meant}?' if meant else ''}")
        elif field is None:
            sentences.append(_reason(each))
        else:
            # A number may have been parsed before it was refused.
            value = each["input"] if len(where) > 1 else values.get(name, each["input"])
            is_public = field.repr and "@" not in str(value)  # a URL may have a password
            shown = f"{brief(value)} " if is_public and each["type"] != "missing" else ""
            sentences.append(f"{name}: {shown}{(len(where) == 1 and expectation(field)) or _reason(each)}")
    return "; ".join(sentences)


def expectation(field: FieldInfo) -> str:
    """Return what the value of a number should be, as in `should be ...`; else ""."""
    unit = next((one for one in field.metadata if isinstance(one, Unit)), None)
    if unit is None:
        return ""
    bounds = {name: getattr(one, name) for one in field.metadata for name in ("gt", "ge", "le") if hasattr(one, name)}
    least = f"above {unit.shown(bounds['gt'])} and at most" if "gt" in bounds else f"from {unit.shown(bounds['ge'])} to"
    number = "a whole number" if field.annotation is int else "a number"
    what = unit.name if unit.name.startswith("a ") else f"{number} of {unit.name}"
    example = unit.example or f"{field.default or bounds['le']:.15g}"  # without commas, so that it can be copied
    return f"should be {what}, as in {example}, {least} {unit.shown(bounds['le'])}"


_REASONS: Final = {
    "missing": "is missing",
    "bool_type": "should be true or false",
    "bool_parsing": "should be true or false",
    "string_type": "should be a text",
    "string_too_short": "should not be empty",
    "too_short": "should not be empty",
    "tuple_type": "should be a list",
    "is_instance_of": "should be a list",
    "model_type": "should be an object with named members",
}
"""Type of an error of pydantic -> the reason, as it follows the value."""


def _reason(error: ErrorDetails) -> str:
    """Return the reason of one error, as it follows the value."""
    if error["type"] == "value_error":  # ours
        return error["msg"].removeprefix("Value error, ")
    if error["type"] == "literal_error":
        return f"should be {error['ctx']['expected']}"
    return _REASONS.get(error["type"], "is not valid")


def with_names(text: str, names: Collection[str], shown: Callable[[str], str]) -> str:
    """Return a message with the settings as they are written where it is read.

    `names` are those of all settings, and `shown` returns the form of one, such as
    HUB_PATH.  In a message, a name is at the beginning, after "; ", or in backticks.

    >>> with_names("path: 'x' is wrong; set `dev`", ["path", "dev"], str.upper)
    "PATH: 'x' is wrong; set DEV"
    """

    def replace(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        return shown(name) if name in names else found[0]

    return _NAME.sub(replace, text)


_NAME: Final = re.compile(r"(?:^|(?<=; ))(\w+)(?=[:. ])|`(\w+)`")
