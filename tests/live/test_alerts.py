"""The alerts of conf/, by Prometheus' own tool and by a Prometheus that scrapes an exporter."""

import json
import re
import shutil
import subprocess
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import pytest

from pyspark_jetstream.client.connection import Client

from ..kits.metrics import publish, reports
from ..kits.options import connection_of
from ..kits.places import ROOT
from ..kits.servers import free_ports
from ..kits.shared import eventually
from ..unit.test_runbook import BY_NAME, named
from .test_metrics import exporter

__all__ = ["exporter"]

RULES = ROOT / "conf" / "prometheus_alerts.yml"
TEXT = RULES.read_text()
NAMES = re.findall(r"- alert: (\w+)", TEXT)
WRITES = "a6a91a5e-51a8-4d4c-8a57-6a8a3a1b2c3d"

# Prometheus is no Python package. CI installs Debian's, and fails if it cannot, so that the alerts
# are always tried there; a contributor's machine may lack it.
needs_promtool = pytest.mark.skipif(
    not shutil.which("promtool"), reason="no promtool on the PATH (Debian: prometheus)"
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
    return "jetstream_publish_outcomes_total" + labelled({"query": query, "status": status})


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
    "nobody reads, one is amid a batch, one has nothing to read": (
        {reader("runs", "ended"): "0x40", reader("lag_messages", "ended"): "3x40",
         reader("runs", "pair"): "0x40", reader("runs", "pair", "1"): "1x40",
         reader("lag_messages", "pair"): "3x40",
         reader("runs", "batch"): "0x10 1 0x10 1x20", reader("lag_messages", "batch"): "3x40",
         reader("runs", "idle"): "0x40", reader("lag_messages", "idle"): "0x40"},
        {(14, "NobodyReads"): [], (30, "NobodyReads"): [{"query": "ended"}]},
    ),
    "a consumer is another query's, one is its own query's again": (
        {reader("runs", "first"): "1x9 _x30", reader("runs", "second"): "_x10 1x29",
         reader("runs", "again", "1"): "1x9 _x5 0x5 1x20"},
        {(9, "TakenOver"): [], (12, "TakenOver"): [{"stream": "S", "consumer": "c-0"}],
         (30, "TakenOver"): []},
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
        {f'jetstream_publish_dead_letter_total{{query="{WRITES}", reason="R"}}': "0x10 3x30"},
        {(9, "DeadLetters"): [], (12, "DeadLetters"): [{"query": WRITES}]},
    ),
    "rows are dropped": (
        {outcomes(WRITES, "dropped"): "0x10 3x30", outcomes("other", "pushed_back"): "0x10 3x30"},
        {(9, "RowsDropped"): [], (12, "RowsDropped"): [{"query": WRITES}]},
    ),
    "a server that stores nothing, one that now and then refuses, and a stream that is full": (
        {outcomes("silent", "pushed_back"): "0x10 0+9x30",
         outcomes("silent", "success"): "0+500x10 5000x30",
         outcomes("busy", "pushed_back"): "0+9x40", outcomes("busy", "success"): "0+500x40",
         outcomes("refused", "pushed_back"): "0x10 0+9x30",
         f'{THROTTLED}{{query="refused", reason="R", stream="S", subject="a"}}': "0x10 0+60000x30"},
        {(9, "NothingStored"): [], (14, "NothingStored"): [{"query": "silent"}],
         (14, "StreamRefuses"): [{"query": "refused", "reason": "R", "stream": "S"}]},
    ),
}  # fmt: skip


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


def test_each_alert_has_a_case():
    """And what it says is of what there is, and a sentence."""
    assert {f"JetStream{each}" for _, expected in CASES.values() for _, each in expected} == set(
        NAMES
    )
    assert named(TEXT) <= set(BY_NAME)
    assert len(re.findall(r'summary: ".+\."', TEXT)) == len(NAMES)


@needs_promtool
@pytest.mark.parametrize("case", CASES)
def test_alerts_fire_when_they_should(case: str, tmp_path: Path) -> None:
    """An alert fires for whom it is about, when it is due, and for nobody else."""
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


@needs_promtool
def test_a_real_prometheus_fires_them(nats_server, exporter, tmp_path):
    """It scrapes by the rules of conf/, seconds for minutes, and fires for more dead letters."""
    subject = "spark.jetstream.metrics.alerts"
    scraped = exporter(nats_server, "--metrics-subject", subject).url.split("/")[2]
    rules, settings = tmp_path / "rules.yml", tmp_path / "prometheus.yml"
    rules.write_text(re.sub(r"\b(\d+)m\b(?!.*summary)", r"\1s", TEXT))
    jobs = [{"job_name": "pyspark-jetstream", "static_configs": [{"targets": [scraped]}]}]
    every = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    settings.write_text(  # JSON is YAML
        json.dumps({"global": every, "rule_files": [str(rules)], "scrape_configs": jobs})
    )
    place = f"127.0.0.1:{free_ports(1)[0]}"

    def holds(query: str) -> bool:
        with suppress(OSError), urlopen(f"http://{place}/api/v1/query?query={quote(query)}") as of:
            return json.load(of)["data"]["result"] != []
        return False  # it is not ready

    more = iter(reports(1, 500))

    def fires() -> bool:
        publish(client, subject, [next(more).encode()])
        return holds('ALERTS{alertname="JetStreamDeadLetters", alertstate="firing"}')

    words = [f"--config.file={settings}", f"--storage.tsdb.path={tmp_path / 'data'}"]
    with (
        (tmp_path / "log").open("wb") as log,
        closing(Client(connection_of(nats_server.url))) as client,
    ):
        process = subprocess.Popen(
            ["prometheus", *words, f"--web.listen-address={place}"], stdout=log, stderr=log
        )
        try:
            eventually(lambda: holds("up == 1"))
            eventually(fires)
        finally:
            process.terminate()
            process.wait(60)
