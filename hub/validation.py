"""Checks of settings, and the sentences that report the settings that failed them."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from pydantic import AfterValidator, TypeAdapter, ValidationError


def text_like(pattern: str, description: str, *, is_url: bool = False) -> AfterValidator:
    """Validate a text by a regular expression; the error shows the description in its place."""

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
    """Return the value as a bool, and False if it is none: its own field reports that."""
    try:
        return TypeAdapter(bool).validate_python(value)
    except ValidationError:
        return False


def sentences(error: ValidationError) -> str:
    """What is wrong with which setting; without the values, one of which may be a key."""
    sentences = []
    for each in error.errors(include_url=False, include_input=False):
        name = ".".join(map(str, each["loc"]))
        reason = "there is no such setting" if each["type"] == "extra_forbidden" else each["msg"]
        reason = reason.removeprefix("Value error, ").removeprefix("Input ")
        sentences.append(f"{name}: {reason}" if name else reason)
    return "; ".join(sentences)
