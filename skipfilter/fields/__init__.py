"""Rules on the fields of a message: which values want a message with this content?

    filter         FieldFilter: values with criteria or expressions, and a message
      ├► clauses       which ids have a clause that a message meets
      │    └► bit_slices   all ids at once, by bitmaps that are added up
      ├► criteria      lists of fields and values, as a value declares them
      └► expressions   what else a value may want: parts, combined
           ├► messages     the values of each field of a message, by its path
           └► storage      as JSON, and back

Belongs here: what a rule says of a message's content, and how rules are found.
Does not belong here: topics and patterns (`topics`).
"""

from __future__ import annotations

from skipfilter.fields.expressions import (
    Expression,
    PartExplanation,
    above,
    all_of,
    any_of,
    at_least,
    at_most,
    below,
    between,
    not_,
    one_of,
    prefix,
    present,
)
from skipfilter.fields.filter import FieldFilter
from skipfilter.fields.storage import from_json, to_json

__all__ = [
    "Expression",
    "FieldFilter",
    "PartExplanation",
    "above",
    "all_of",
    "any_of",
    "at_least",
    "at_most",
    "below",
    "between",
    "from_json",
    "not_",
    "one_of",
    "prefix",
    "present",
    "to_json",
]
