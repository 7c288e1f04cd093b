"""The alerts of conf/, by Prometheus' own tool and by a Prometheus that scrapes an exporter."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.fetch.owner import Owner

from ..conftest import connection_to
from ..kits.exporter import Scrapes, exporter
from ..kits.metrics import publish
from ..kits.places import ROOT
from ..kits.prometheus import Prometheus, running
from ..kits.servers import DevServer
from ..unit.test_runbook import BY_NAME, RUNBOOK, named

__all__ = ["exporter"]

RULES = ROOT / "conf" / "prometheus_alerts.yml"
TEXT = RULES.read_text()
NAMES = re.findall(r"- alert: (\w+)", TEXT)
WRITES = "a6a91a5e-51a8-4d4c-8a57-6a8a3a1b2c3d"

# The rules are run by Prometheus itself, which is no Python package. CI installs Debian's, so
# nothing is skipped there; a developer's machine may lack it.
needs_prometheus = pytest.mark.skipif(
    not (shutil.which("prometheus") and shutil.which("promtool")),
    reason="no Prometheus on the PATH (Debian: prometheus); CI installs it",
)


ABOUT = ("consumer", "instance", "query", "reason", "stream", "subject")
"""Labels that tell whom an alert is about."""


def labelled(labels: dict[str, str]) -> str:
    return "{" + ", ".join(f"{name}={json.dumps(value)}" for name, value in labels.items()) + "}"


def reader(name: str, query: str, number: str = "0") -> str:
    """A series of a query's consumer."""
    labels = {"query": query, "stream": "S", "consumer": f"c-{number}"}
    return f"jetstream_read_{name}{labelled(labels)}"


def outcomes(query: str, status: str) -> str:
    return "jetstream_publish_outcomes_total" + labelled(
        {"query": query, "status": status, "stream": "S"}
    )


THROTTLED = "jetstream_producer_throttled_times_total"
LABELS = f'query="{WRITES}", reason="R", stream="S"'
NO_STREAM = LABELS.replace('"S"', '""')

# What there is to see, minute by minute, and the labels of each alert that then fires: (minute,
# alert) → labels. In each case one that looks alike is all right.
CASES: dict[str, tuple[dict[str, str], dict[tuple[int, str], list[dict[str, str]]]]] = {
    "the exporter is down": (
        {'up{job="pyspark-jetstream", instance="a"}': "1x5 0x20",
         'up{job="pyspark-jetstream", instance="b"}': "1x25"},
        {(7, "ExporterDown"): [], (20, "ExporterDown"): [{"instance": "a"}]},
    ),
    "one lag grows, one is high and falls, one is small": (
        {reader("lag_messages", "grows"): "0+500x60",
         reader("lag_messages", "falls"): "90000-500x60",
         reader("lag_messages", "small"): "0+10x60"},
        {(5, "LagGrows"): [], (40, "LagGrows"): [{"query": "grows"}]},
    ),
    "one subject is paused for long, one for a moment": (
        {f'{THROTTLED}{{{NO_STREAM}, subject="long.>"}}': "0+60000x60",
         f'{THROTTLED}{{{NO_STREAM}, subject="short.>"}}': "0+60000x2 120000x58"},
        {(4, "PausedLong"): [],
         (12, "PausedLong"): [{"query": WRITES, "reason": "R", "subject": "long.>"}],
         (30, "StreamRefuses"): []},
    ),
    "one stream refuses rows, another one did": (
        {f'{THROTTLED}{{{LABELS}, subject="UNKNOWN"}}': "0x5 0+60000x30",
         f'{THROTTLED}{{{LABELS.replace("S", "T")}, subject="UNKNOWN"}}': "300000x35"},
        {(5, "StreamRefuses"): [], (30, "PausedLong"): [],
         (8, "StreamRefuses"): [{"query": WRITES, "reason": "R", "stream": "S"}]},
    ),
    "a consumer is paused, another one for a moment": (
        {reader("paused", "long"): "0x5 1x35",
         reader("paused", "short"): "0x5 1x4 0x31"},
        {(9, "ConsumerPaused"): [],
         (15, "ConsumerPaused"): [{"query": "long", "stream": "S", "consumer": "c-0"}]},
    ),
    "dead letters of a write": (
        {f'jetstream_publish_dead_letter_total{{{LABELS}, priority="normal"}}': "0x10 3x30"},
        {(9, "DeadLetters"): [], (12, "DeadLetters"): [{"query": WRITES, "stream": "S"}]},
    ),
    "rows are dropped": (
        {outcomes(WRITES, "dropped"): "0x10 3x30", outcomes("other", "pushed_back"): "0x10 3x30"},
        {(9, "RowsDropped"): [], (12, "RowsDropped"): [{"query": WRITES, "stream": "S"}]},
    ),
    "a server that stores nothing, one that now and then refuses, and a stream that is full": (
        {outcomes("silent", "pushed_back"): "0x10 0+9x30",
         outcomes("silent", "success"): "0+500x10 5000x30",
         outcomes("busy", "pushed_back"): "0+9x40", outcomes("busy", "success"): "0+500x40",
         outcomes("refused", "pushed_back"): "0x10 0+9x30",
         f'{THROTTLED}{{query="refused", reason="R", stream="S", subject="a"}}': "0x10 0+60000x30"},
        {(9, "NothingStored"): [], (14, "NothingStored"): [{"query": "silent", "stream": "S"}],
         (14, "StreamRefuses"): [{"query": "refused", "reason": "R", "stream": "S"}]},
    ),
}  # fmt: skip


def test_alerts_speak_of_what_there_is() -> None:
    """
    Each alert asks for metrics that are exported, has a severity and a sentence, and names a
    section that the runbook has; each has a case below.
    """
    headings = re.findall(r"^#+ (.+)$", RUNBOOK, re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}
    blocks = TEXT.split("- alert: ")[1:]

    assert named(TEXT) <= set(BY_NAME)
    for block in blocks:
        assert re.search(r"labels: \{severity: (critical|warning)\}", block)
        assert re.search(r'summary: ".+\."', block)
        (section,) = re.findall(r'runbook: "docs/runbook\.md#(.+)"', block)
        assert section in anchors
    assert {f"JetStream{each}" for _, expected in CASES.values() for _, each in expected} == set(
        NAMES
    )


def run_rules(
    folder: Path, series: dict[str, str], **tests: list[dict[str, Any]]
) -> subprocess.CompletedProcess[str]:
    """The rules over these series, a value a minute, by Prometheus' own tool."""
    given = [{"series": name, "values": values} for name, values in series.items()]
    content = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": given, **tests}],
    }
    file = folder / "tests.yml"
    file.write_text(json.dumps(content))  # JSON is YAML
    return subprocess.run(
        ["promtool", "test", "rules", str(file)], capture_output=True, text=True, timeout=120
    )


@needs_prometheus
@pytest.mark.parametrize("case", CASES)
def test_alerts_fire_when_they_should(case: str, tmp_path: Path) -> None:
    """
    Prometheus' own evaluation: an alert fires for whom it is about, when it is due, and for nobody
    else.
    """
    series, expected = CASES[case]
    done = run_rules(
        tmp_path,
        series,
        promql_expr_test=[
            {
                "expr": f"count by ({', '.join(ABOUT)}) "
                f'(ALERTS{{alertname="JetStream{name}", alertstate="firing"}})',
                "eval_time": f"{minute}m",
                "exp_samples": [{"labels": labelled(each), "value": 1} for each in firing],
            }
            for (minute, name), firing in expected.items()
        ],
    )

    assert done.returncode == 0, f"{done.stdout}{done.stderr}"


SUBJECT = "spark.jetstream.metrics.alerts"


@pytest.fixture
def prometheus(
    nats_server: DevServer, exporter: Callable[..., Scrapes], tmp_path: Path
) -> Iterator[Prometheus]:
    """One that scrapes each second, by the rules of conf/ with seconds instead of minutes."""
    scrapes = exporter(nats_server, "--metrics-subject", SUBJECT, "--every", "500ms")
    quick = re.sub(r"\b(\d+)m\b(?!.*summary)", r"\1s", TEXT)
    rules = tmp_path / "rules.yml"
    rules.write_text(quick)
    place = scrapes.url.removeprefix("http://").removesuffix("/metrics")
    with running(shutil.which("prometheus"), tmp_path / "p", [place], 1.0, rules) as started:
        yield started


@needs_prometheus
def test_a_real_prometheus_fires_them(
    prometheus: Prometheus, nats_server: DevServer, js: JetStream, new_stream: Callable[..., str]
) -> None:
    """
    A query's consumer that is paused, and dead letters that become more: both alerts fire.
    """
    stream = new_stream()
    js.create_consumer(stream, {
        "durable_name": "q-0", "ack_policy": "none", "pause_until": "2100-01-01T00:00:00Z",
        "metadata": Owner("q", "h", 1).metadata,
    })  # fmt: skip
    report: dict[str, Any] = {
        "type": "metrics", "producer_id": 1, "query_id": WRITES, "batch_id": 0,
        "sequence": 0, "final": False, "query_name": "",
    }  # fmt: skip
    client = Client(connection_to(nats_server))
    deadline = time.monotonic() + 120
    try:
        seen: set[str] = set()
        while not seen >= {"JetStreamConsumerPaused", "JetStreamDeadLetters"}:
            assert time.monotonic() < deadline, seen
            report["sequence"] += 1
            report["snapshot"] = {
                "jetstream_publish_dead_letter_total": [
                    [["Rejected", "normal", "S"], [report["sequence"]]]
                ]
            }
            publish(client, SUBJECT, [json.dumps(report).encode()])
            seen |= prometheus.firing()
            time.sleep(0.5)
        assert "JetStreamExporterDown" not in seen
    finally:
        client.close()
