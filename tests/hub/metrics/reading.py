"""Reads metrics as Prometheus does, with the parser of prometheus-client."""

from __future__ import annotations

import asyncio
import urllib.request
from typing import TypeAlias

from prometheus_client.parser import text_string_to_metric_families

from tests.waiting import HANG

Metrics: TypeAlias = dict[str, float]
"""A sample, as in `name` or `name{label}` -> its number; the `le` of buckets is a label."""


def text_at(url: str) -> str:
    with urllib.request.urlopen(url, timeout=HANG) as response:
        assert response.headers["Content-Type"].startswith("text/plain")
        text: str = response.read().decode()
        return text


def parsed(text: str) -> Metrics:
    found: Metrics = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation
        assert family.type in ("counter", "gauge", "histogram")
        for sample in family.samples:
            label = "{" + ",".join(sample.labels.values()) + "}" if sample.labels else ""
            assert sample.name + label not in found
            found[sample.name + label] = sample.value
    return found


async def metrics_at(url: str) -> Metrics:
    """Return the metrics of a hub; its event loop may be that of the test."""
    return parsed(await asyncio.to_thread(text_at, url))


def changes(before: Metrics, after: Metrics) -> Metrics:
    """Return by how much numbers have grown, without those that have not changed."""
    return {name: value - before[name] for name, value in after.items() if value != before[name]}
