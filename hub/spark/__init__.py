"""A hub as a source and a sink of Spark, and its event log as tables."""

from __future__ import annotations

import skipfilter.spark  # noqa: F401  says what is missing
