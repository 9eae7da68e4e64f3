"""The forms of settings that are texts, and the sentences for wrong settings."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from pydantic import AfterValidator, TypeAdapter, ValidationError


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


def sentences(error: ValidationError) -> str:
    """Return one line that says which settings are wrong, and why.

    The values are left out, because one of them may be a secret key.
    """
    sentences = []
    for each in error.errors(include_url=False, include_input=False):
        name = ".".join(map(str, each["loc"]))
        reason = "there is no such setting" if each["type"] == "extra_forbidden" else each["msg"]
        reason = reason.removeprefix("Value error, ").removeprefix("Input ")
        sentences.append(f"{name}: {reason}" if name else reason)
    return "; ".join(sentences)
