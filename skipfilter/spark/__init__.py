"""The same matching over tables: who received what, and who would have, on Spark.

    sessions ──► postings ──┐
                            ├──► match ──► fanout, bitmaps, rows, received
    updates  ──► topics  ───┘

`pip install skipfilter[spark]`, and a Java 17 or newer.
"""

from __future__ import annotations

try:
    import pyspark  # noqa: F401
except ImportError:
    raise ImportError("skipfilter.spark needs PySpark: pip install skipfilter[spark]") from None
