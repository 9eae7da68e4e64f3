"""The queries of the dashboard and of the alerts in `examples/deploy`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

FOLDER: Final = Path(__file__).parents[3] / "examples" / "deploy"
DASHBOARD: Final = FOLDER / "grafana.json"
ALERTS: Final = FOLDER / "alerts.yml"


class Query(NamedTuple):
    where: str
    """The title of its panel, or the name of its alert."""
    text: str


def of_dashboard(job: str = "hub", interval: str = "5m") -> list[Query]:
    """Return the queries of the dashboard, with the values of its variables."""
    dashboard: Any = json.loads(DASHBOARD.read_text("utf-8"))
    return [
        Query(panel["title"], target["expr"].replace("$job", job).replace("$__rate_interval", interval))
        for panel in dashboard["panels"]
        for target in panel["targets"]
    ]


def of_alerts() -> list[Query]:
    [group] = yaml.safe_load(ALERTS.read_text("utf-8"))["groups"]
    return [Query(rule["alert"], rule["expr"]) for rule in group["rules"]]


def measured(query: Query) -> Query:
    """Return what an alert compares, without the comparison that ends it."""
    return query._replace(text=re.sub(r"\s*(>|<|==)\s*([\d.]+|sum by \(instance\) \([a-z_]+\))$", "", query.text))
