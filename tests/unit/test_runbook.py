"""The dashboard and the runbook speak of the metrics that there are, and of all of them."""

from __future__ import annotations

import json
import re

from pyspark_jetstream.operations.metrics.readers import READERS
from pyspark_jetstream.publish.metrics import METRICS as OF_WRITES
from pyspark_jetstream.publish.metrics import Metric

from ..kits.places import ROOT

DASHBOARD = json.loads((ROOT / "conf" / "grafana_dashboard.json").read_text())
RUNBOOK = (ROOT / "docs" / "runbook.md").read_text()
ALERTS = (ROOT / "conf" / "prometheus_alerts.yml").read_text()
SUFFIXES = {"gauge": [""], "counter": ["_total"], "histogram": ["_bucket", "_count", "_sum"]}


METRICS = OF_WRITES | {
    name: Metric(name, "gauge", ("query", "stream", "consumer"), doc, {})
    for name, (_, doc) in READERS.items()
}
"""All that the exporter shows, by name."""


def scraped(metric: Metric) -> list[str]:
    """The names that Prometheus knows it by."""
    name = metric.name.removesuffix("_total") if metric.kind == "counter" else metric.name
    return [name + suffix for suffix in SUFFIXES[metric.kind]]


BY_NAME = {name: metric for metric in METRICS.values() for name in scraped(metric)}
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]
ANCHORS = {
    re.sub(r"[^\w -]", "", heading).replace(" ", "-").lower()
    for heading in re.findall(r"^#+ (.*)$", RUNBOOK, re.MULTILINE)
}
"""Of the runbook's sections, as a site and a forge make them."""


def named(text: str) -> set[str]:
    """The metrics in a text."""
    return set(re.findall(r"jetstream_(?:publish|producer|read)_\w+", text))


def test_an_expression_is_of_what_is_exported():
    """
    A panel asks for one metric by the name it is scraped under, for labels that it has, and for
    the rate of what only grows. It shows the job, the queries and, of a metric that has it, the
    streams that are chosen.
    """
    for expression in EXPRESSIONS:
        (name,) = named(expression)
        metric = BY_NAME[name]
        words = re.findall(r"\bby \(([^)]*)\)", expression)
        labels = {label.strip() for each in words for label in each.split(",")}
        chosen = {"job", "query", *({"stream"} & set(metric.labels))}

        assert labels <= {*metric.labels, "query", *(["le"] if name.endswith("_bucket") else [])}
        assert set(re.findall(r'(\w+)=~"\$\1"', expression)) == chosen, expression
        assert set(re.findall(r'(\w+)=~?"', expression)) <= {"job", "query", *metric.labels}
        assert ("rate(" in expression or "increase(" in expression) is (metric.kind != "gauge")
        assert expression.count("(") == expression.count(")"), expression


def test_the_dashboard_shows_everything():
    """
    Every metric has its place on the dashboard; legends show labels of their expression, panels
    say what they mean.
    """
    assert {BY_NAME[name].name for each in EXPRESSIONS for name in named(each)} == set(METRICS)
    for panel in PANELS:
        assert panel["description"]
        for target in panel["targets"]:
            shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            assert all(re.search(rf"by \([^)]*\b{each}\b", target["expr"]) for each in shown)


def test_the_runbook_has_a_row_for_each():
    """
    The runbook's table has each metric with its scraped name, its type and its labels, and the
    text names no other.
    """
    rows = re.findall(r"^\| `(jetstream_\w+)` \| (\w+) \|([^|]*)\|", RUNBOOK, re.MULTILINE)
    expected = {
        (m.name if m.kind == "histogram" else scraped(m)[0], m.kind, ", ".join(m.labels))
        for m in METRICS.values()
    }

    assert {(name, kind, labels.strip()) for name, kind, labels in rows} == expected
    assert len(rows) == len(METRICS)
    assert named(RUNBOOK) <= set(BY_NAME) | set(METRICS)


def test_the_runbook_leads_from_each_alert_to_its_section():
    """
    The table near the head has every alert in the file's order, with its severity and the section
    that the alert names.
    """
    blocks = re.findall(r"- alert: (\w+)\n(.*?)(?=\n\n|\Z)", ALERTS, re.DOTALL)
    expected = [
        (name, re.findall(r"severity: (\w+)", block), re.findall(r"runbook\.md#([\w-]+)", block))
        for name, block in blocks
    ]
    rows = re.findall(r"^\| `(JetStream\w+)` \| (\w+) \| .+\]\(#(\S+)\) \|$", RUNBOOK, re.MULTILINE)

    assert len(blocks) >= 8
    assert [(name, [severity], [section]) for name, severity, section in rows] == expected
    assert {section for _, _, section in rows} <= ANCHORS
