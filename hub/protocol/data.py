"""Values as text: the data of an update, and JSON."""

from __future__ import annotations

import json
from typing import Any, Final, TypeAlias

Data: TypeAlias = str | dict[str, Any] | list[Any]
"""The data of an update, as a program gives it."""

to_json: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
"""Return a value as compact JSON.  json.dumps() would make a new encoder each time."""

_strict: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def data_text(data: Data) -> str:
    """Return the data of an update as text.

    A str is returned unchanged, and a dict or list as compact JSON.  Raises TypeError
    for anything else, or if a value inside has no form in JSON, and ValueError for NaN
    and infinity.
    """
    if isinstance(data, str):
        return data
    if isinstance(data, dict | list):
        return _strict(data)
    raise TypeError(f"data is of type {type(data).__name__}: it must be a str, a dict or a list")
