"""The dashboard, and what `make dashboard` judges by: which queries have data and must move."""

from __future__ import annotations

import json
import math

from bench.dashboard.panels import MOVED, Answer, Target, answered, faults, table, targets

from ..kits import grafana
from ..kits.places import ROOT
from .test_runbook import BY_NAME

DASHBOARD = ROOT / "conf" / "grafana_dashboard.json"
MOVES = Target("Lag", "{{query}}", "sum (jetstream_read_lag_messages)")
STAYS = Target("Nothing", "all", "sum (rate(jetstream_publish_duplicates_total[1m]))")


def test_the_dashboard_is_as_grafana_publishes():
    """
    Its JSON is what Grafana's published schema allows: fields, types, words and what must be there.
    """
    dashboard = json.loads(DASHBOARD.read_text())

    assert list(grafana.faults(dashboard)) == []
    broken = dashboard | {"refersh": "5s", "version": "1", "panels": [{"type": "stat"}]}
    del broken["schemaVersion"]
    assert sorted(grafana.faults(broken)) == [
        "dashboard.panels[0].gridPos: missing",
        "dashboard.refersh: unknown",
        "dashboard.schemaVersion: missing",
        "dashboard.version: '1' is none of number",
    ]


def test_all_queries_of_the_dashboard():
    """
    Every query of every panel is asked, of a metric that there is, without a variable of Grafana's
    left in it; what must move is among them.
    """
    found = targets(DASHBOARD)

    assert {each.metric for each in found} <= {name.removesuffix("_bucket") for name in BY_NAME}
    assert not any("$" in each.promql(20.0) for each in found)
    assert any("[20s]" in each.promql(20.0) for each in found)
    assert MOVED <= {each.metric for each in found}
    assert len({each.panel for each in found}) == 15


def test_an_answer_without_numbers_is_a_fault():
    """A panel needs one sample that is a number; where the run must move something, one above 0."""
    nothing = answered(MOVES, [])
    none = answered(STAYS, [{"metric": {}, "values": [[1, "NaN"], [2, "+Inf"]]}])
    zero = [{"metric": {}, "values": [[1, "0"], [2, "NaN"]]}]
    some = [*zero, {"metric": {}, "values": [[1, "0.5"]]}]

    assert (nothing.series, nothing.samples, math.isnan(nothing.highest)) == (0, 0, True)
    assert answered(MOVES, some) == Answer(MOVES, 2, 2, 0.5)
    assert faults([answered(MOVES, some), answered(STAYS, zero)]) == []
    assert faults([nothing, none, answered(MOVES, zero)]) == [
        f"no sample: Lag: {MOVES.expression}",
        f"no sample: Nothing: {STAYS.expression}",
        f"nothing moved: Lag: {MOVES.expression}",
    ]


def test_the_table():
    """One row a query, with its panel and what it is of."""
    assert table([answered(STAYS, [{"values": [[1, "1200.5"]]}])]).splitlines()[2] == (
        "| Nothing | all of `jetstream_publish_duplicates_total` | 1 | 1 | 1,200 |"
    )
