"""The dashboard and the alerts in `examples/deploy` ask for metrics that there are."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
import yaml

from hub.metrics.catalogue import CATALOGUE
from tests.hub.metrics.queries import ALERTS, DASHBOARD, FOLDER, measured, of_alerts, of_dashboard

if TYPE_CHECKING:
    from tests.hub.metrics.queries import Query

QUERIES: Final = [*of_dashboard(), *of_alerts(), *map(measured, of_alerts())]
README: Final = (Path(__file__).parents[3] / "hub" / "README.md").read_text("utf-8")

SAMPLES: Final = {
    name: metric
    for metric in CATALOGUE
    for name in (
        (f"{metric.name}_bucket", f"{metric.name}_sum", f"{metric.name}_count")
        if metric.kind == "histogram"
        else (metric.name,)
    )
}


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.where)
def test_a_query_asks_for_metrics_and_labels_that_there_are(query: Query) -> None:
    names = set(re.findall(r"\b(?:hub|mercure)_[a-z_]+\b", query.text))
    assert names or query.text.startswith("up{")
    for name in names:
        metric = SAMPLES[name]
        is_counted = metric.kind in ("counter", "histogram")
        assert is_counted == bool(re.search(rf"(rate|increase)\({name}\b", query.text)), (
            "a counter, and no gauge, has a rate"
        )
        selectors = re.findall(rf"{name}\{{([^}}]*)\}}", query.text)
        for label, values in re.findall(r'(\w+)=~?"([^"]*)"', ",".join(selectors)):
            if label != "job":
                assert label == metric.label
                assert set(values.split("|")) <= set(metric.values)
    grouped = set(re.findall(r"\w+", ",".join(re.findall(r"by \(([^)]*)\)", query.text))))
    labels = {SAMPLES[name].label for name in names} | {"instance", "le"}
    assert grouped <= labels
    if "histogram_quantile" in query.text:
        assert "le" in grouped
        assert all(name.endswith("_bucket") for name in names)
    assert query.text.count("(") == query.text.count(")")


def test_each_metric_has_a_graph_and_a_meaning() -> None:
    graphed = " ".join(query.text for query in of_dashboard())
    for metric in CATALOGUE:
        assert re.search(rf"\b{metric.name}(_bucket)?\b", graphed)
        assert f"`{metric.name}" in README


def test_each_panel_and_each_alert_is_explained() -> None:
    panels: Any = json.loads(DASHBOARD.read_text("utf-8"))["panels"]
    assert all(panel["description"].endswith(".") for panel in panels)
    [group] = yaml.safe_load(ALERTS.read_text("utf-8"))["groups"]
    assert len({rule["alert"] for rule in group["rules"]}) == len(group["rules"])
    for rule in group["rules"]:
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"]["summary"]
        assert f"`{rule['alert']}`" in README


def test_the_panels_do_not_overlap() -> None:
    places = [panel["gridPos"] for panel in json.loads(DASHBOARD.read_text("utf-8"))["panels"]]
    cells = [
        (x, y) for at in places for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(cells) == len(set(cells))


def test_prometheus_scrapes_the_port_that_the_page_names() -> None:
    [job] = yaml.safe_load((FOLDER / "prometheus.yml").read_text("utf-8"))["scrape_configs"]
    [target] = job["static_configs"][0]["targets"]
    assert f"HUB_METRICS_PORT={target.rpartition(':')[2]}" in README
