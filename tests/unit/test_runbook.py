"""The dashboard and the runbook speak of the metrics that there are, and of all of them."""

from __future__ import annotations

import json
import re

import pytest

from pyspark_jetstream.publish.metrics import EXPORTED, Metric

from ..kits.places import ROOT

DASHBOARD = json.loads((ROOT / "conf" / "grafana_dashboard.json").read_text())
RUNBOOK = (ROOT / "docs" / "runbook.md").read_text()
SUFFIXES = {"gauge": [""], "counter": ["_total"], "histogram": ["_bucket", "_count", "_sum"]}


def scraped(metric: Metric) -> list[str]:
    """The names that Prometheus knows it by."""
    name = metric.name.removesuffix("_total") if metric.kind == "counter" else metric.name
    return [name + suffix for suffix in SUFFIXES[metric.kind]]


BY_NAME = {name: metric for metric in EXPORTED.values() for name in scraped(metric)}
EXPRESSIONS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


def named(text: str) -> set[str]:
    """The metrics in a text."""
    return set(re.findall(r"jetstream_(?:publish|producer|read)_\w+", text))


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_is_of_what_is_exported(expression):
    """
    A panel asks for one metric by the name it is scraped under, for labels that it has, and for
    the rate of what only grows.
    """
    (name,) = named(expression)
    metric = BY_NAME[name]
    words = re.findall(r"\bby \(([^)]*)\)", expression)
    labels = {label.strip() for each in words for label in each.split(",")}

    assert labels <= {*metric.labels, "query", *(["le"] if name.endswith("_bucket") else [])}
    assert ("rate(" in expression or "increase(" in expression) is (metric.kind != "gauge")
    assert expression.count("(") == expression.count(")")


def test_the_dashboard_shows_everything():
    """
    Every metric has its place on the dashboard; legends show labels of their expression, panels
    do not overlap and say what they mean.
    """
    assert {BY_NAME[name].name for each in EXPRESSIONS for name in named(each)} == set(EXPORTED)
    for panel in DASHBOARD["panels"]:
        assert panel["description"]
        for target in panel["targets"]:
            shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            assert all(re.search(rf"by \([^)]*\b{each}\b", target["expr"]) for each in shown)
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in DASHBOARD["panels"]]
    assert len(set(places)) == len({panel["id"] for panel in DASHBOARD["panels"]}) == len(places)


def test_the_runbook_has_a_row_for_each():
    """
    The runbook's table has each metric with its scraped name, its type and its labels, and the
    text names no other.
    """
    rows = re.findall(r"^\| `(jetstream_\w+)` \| (\w+) \|([^|]*)\|", RUNBOOK, re.MULTILINE)
    expected = {
        (m.name if m.kind == "histogram" else scraped(m)[0], m.kind, ", ".join(m.labels))
        for m in EXPORTED.values()
    }

    assert {(name, kind, labels.strip()) for name, kind, labels in rows} == expected
    assert len(rows) == len(EXPORTED)
    assert named(RUNBOOK) <= set(BY_NAME) | set(EXPORTED)
