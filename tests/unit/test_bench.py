"""The benchmarks run, and what they write has the documented shape."""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from bench.about import About
from bench.comparisons import Ratio, Times
from bench.others.delay import Delay
from bench.report import page
from bench.results import Results
from bench.waiting import started
from bench.windows.comparison import Surrounding, entries, summary
from bench.windows.scripted import Script, run
from pyspark_jetstream.outbox.limits import GradientLimit

from ..kits.places import ROOT

FIELDS = ("name", "value", "unit", "reference", "reference_value", "ratio")


def run_bench(directory: Path, *arguments: str) -> list[dict]:
    """The entries of bench-results.json, which is all that a run leaves."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-m", "bench", *arguments],
        cwd=directory,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=3000,  # a minute on a calm machine is a quarter of an hour on a busy one
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert [path.name for path in directory.iterdir()] == ["bench-results.json"]
    phases = json.loads((directory / "bench-results.json").read_text())
    entries = [entry for phase in phases.values() for entry in phase["entries"]]
    assert {tuple(entry) for entry in entries} == {FIELDS}
    return entries


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.live
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("phase", "cases", "references"),
    [
        ("read", 10, {"raw drain", "raw unpinned", "raw direct", "nats-py", "Spark alone"}),
        ("share", 6, {"raw claims", "nats-py"}),
        ("scale", 3, {"Spark alone"}),
        # A range; three modes in one batch and one in several; a snapshot; three ways to write.
        ("wan", 1 + 3 + 1 + 1 + 3, {"no delay"}),
        # Flights in three ways; then three payloads in three modes, with ids and without.
        (
            "write",
            3 + 3 * 3 * 2,
            {"raw publish", "raw fast", "raw atomic", "Spark alone", "nats-py"},
        ),
    ],
)
def test_benchmarks_write_their_results(tmp_path, phase, cases, references):
    """
    `python -m bench` measures every case against its references and leaves bench-results.json.
    """
    entries = run_bench(tmp_path, "--rows", "20000", "--only", phase)

    assert all(entry["name"].startswith(f"{phase} ") and entry["value"] >= 0 for entry in entries)
    rates = [entry for entry in entries if entry["reference"] is not None]
    assert len({entry["name"] for entry in rates}) == cases
    assert {entry["reference"] for entry in rates} == references
    for entry in rates:
        expected = entry["value"] / entry["reference_value"]
        rounded = 0.5 / entry["value"] + 0.5 / entry["reference_value"] if entry["value"] else 1
        assert entry["ratio"] == pytest.approx(expected, rel=1e-3 + rounded, abs=1e-3)
    others = [entry for entry in entries if entry not in rates]
    assert {entry["unit"] for entry in rates} <= {"rows/s"}
    counts = {"requests a second", "requests a batch", "connections"}
    assert {entry["unit"] for entry in others} <= {"rows/s", "CPU-s/1M rows", "MB", *counts}
    assert all(entry["reference"] is entry["ratio"] is None for entry in others)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.live
def test_snapshots_and_what_publishers_notice_of_them_are_measured(tmp_path):
    """
    `--only snapshot` measures a range, snapshots of three sizes with the cost of a subject, and
    publishes to the stream that is read and to another one, with and without a read.
    """
    entries = run_bench(tmp_path, "--rows", "20000", "--only", "snapshot")

    rates = {(entry["name"], entry["reference"]) for entry in entries if entry["unit"] == "rows/s"}
    sizes = [f"snapshot of {subjects} subjects" for subjects in ("20", "1,000", "20,000")]
    assert rates == {
        *(("read range, whole stream", each) for each in ("raw drain", "nats-py")),
        *((size, each) for size in sizes for each in ("raw drain", "Spark reduce", "nats-py")),
    }
    values = {entry["name"]: entry["value"] for entry in entries}
    for size in sizes:
        assert 0 < values[f"{size}: plan alone"] < values[f"{size}: time"] + 1
        assert values[f"{size}: time a subject"] > 0
    waits = [entry for entry in entries if entry["name"].startswith("publishes ")]
    assert {entry["unit"] for entry in waits} == {"ms"}
    assert all(entry["value"] > 0 for entry in waits)
    slow = [entry for entry in waits if entry["name"].endswith(": p99")]
    # Three streams without a read; busy cores, a raw drain, a range and two snapshots.
    assert len(slow) == 2 * (3 + 5)
    assert {entry["reference"] for entry in slow} == {"no read"}


@pytest.mark.slow
@pytest.mark.live
def test_the_cost_of_the_disk_is_written(tmp_path):
    """
    `--only disk` needs no Spark and compares a server that syncs with one that does not, in each
    publish mode and row by row.
    """
    entries = run_bench(tmp_path, "--rows", "50000", "--only", "disk")

    assert [entry["name"] for entry in entries] == [
        f"sync_interval: always, {way}" for way in ("async", "fast", "atomic", "one at a time")
    ]
    assert {entry["reference"] for entry in entries} == {"the default"}
    assert all(entry["value"] > 0 and entry["ratio"] > 0 for entry in entries)


@pytest.mark.slow
@pytest.mark.live
def test_the_speed_of_keys_and_counters_is_written(tmp_path):
    """
    `--only buckets` needs no Spark and compares keys and counters with plain rows and nats-py.
    """
    entries = run_bench(tmp_path, "--rows", "50000", "--only", "buckets")

    assert [(entry["name"], entry["reference"]) for entry in entries] == [
        (f"{what}, {mode}", beside)
        for what in ("keys", "counters")
        for mode, beside in (("async", "plain rows"), ("fast", "plain rows"), ("async", "nats-py"))
    ]
    assert all(entry["value"] > 0 and entry["ratio"] > 0 for entry in entries)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.live
def test_the_latency_of_rows_is_measured_over_rates(tmp_path):
    """
    `--only latency` follows two streams at four rates; a row is later than it was stored.
    """
    entries = run_bench(tmp_path, "--rows", "20000", "--only", "latency")

    rates = ("1", "200", "2,000", "20,000")
    parts = ("latestOffset", "queryPlanning", "walCommit", "addBatch", "commitOffsets")
    series = [f"row, {rate}/s" for rate in rates]
    series += [f"a batch at 200/s, {part}" for part in parts]
    series += ["start to first batch planned", "start to first batch planned, Spark alone"]
    names = [f"{of}: {each}" for of in series for each in ("p50", "p99", "max")]
    assert [entry["name"] for entry in entries] == names
    assert all(entry["unit"] == "ms" for entry in entries)
    assert all(entry["value"] > 0 for entry in entries if not entry["name"].startswith("a micro"))


@pytest.mark.slow
def test_the_cost_of_mapping_is_written(tmp_path):
    """
    `--only mapping` needs neither a server nor Spark and gives nanoseconds a row for every rule.
    """
    entries = run_bench(tmp_path, "--only", "mapping")

    assert {entry["unit"] for entry in entries} == {"ns/row"}
    assert all(entry["name"].startswith("mapping ") and entry["value"] > 0 for entry in entries)
    assert {"mapping partition, all different", "mapping simple, 3,000 different"} <= {
        entry["name"] for entry in entries
    }


def nodes():
    """(module as parts of its name, each node of its syntax tree) of the modules of bench/."""
    for path in sorted((ROOT / "bench").rglob("*.py")):
        module = path.relative_to(ROOT).with_suffix("").parts
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            yield module, node


def test_what_children_do_is_there():
    """
    Each function that the command line of a child may name, as a string, is one.
    """
    names = {
        node.value
        for _, node in nodes()
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.fullmatch(r"bench(\.\w+)+:\w+", node.value)
    }

    assert {
        "bench.others.delay:serve",
        "bench.measures.sharing:claim",
        "bench.others.work:publish",
    } <= names
    for name in names:
        module, _, function = name.partition(":")
        assert callable(getattr(importlib.import_module(module), function)), name


def test_a_delaying_proxy_holds_no_bytes_back_for_an_acknowledgement():
    """
    TCP_NODELAY on what it accepts, which asyncio leaves off: a server without delay seemed slow.
    """
    delay = Delay("nats://127.0.0.1:4222", 0.0)
    with delay.listener, socket.create_connection(("127.0.0.1", delay.port)):
        accepted, _ = delay.listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_run_whose_python_processes_did_not_start_is_made_again():
    """
    Spark waits ten seconds for them, also on a busy machine; any other error is one at once.
    """
    left = [RuntimeError("Python worker failed to connect back.")] * 4

    def run():
        if left:
            raise left.pop()
        return "found"

    assert started(run) == "found"
    left += [RuntimeError("Python worker failed to connect back.")] * 5
    with pytest.raises(RuntimeError, match="connect back"):
        started(run)
    left += [ValueError("no"), RuntimeError("not reached")][::-1]
    with pytest.raises(ValueError, match="no"):
        started(run)
    assert len(left) == 1


def stored(script, limit):
    """Publishes that one writer gets stored in two seconds."""
    return run(script, limit, until=2.0, tick_s=0.001)[0].window.tally.acked


def test_a_scripted_server_stores_at_its_rate():
    """
    With a window that is large enough; with a small one, as much as the round trip lets through.
    """
    script = Script(rtt_s=lambda now: 0.02, rate=lambda now: 10_000)

    assert stored(script, GradientLimit(1_000, 1_000, 1_000)) == pytest.approx(20_000, rel=0.05)
    assert stored(script, GradientLimit(10, 10, 10)) == pytest.approx(1_000, rel=0.1)


def test_a_scripted_server_refuses_what_it_has_no_room_for():
    """
    A window beyond its room costs retries and their pauses, one within it nothing.
    """
    script = Script(rate=lambda now: 10_000, room=100, refusal=0.2)

    assert stored(script, GradientLimit(100, 100, 100)) == pytest.approx(20_000, rel=0.05)
    assert stored(script, GradientLimit(1_000, 1_000, 1_000)) < 10_000


def test_windows_are_judged_by_their_shares_of_the_best():
    """
    Each server's best window is 1; what counts is the least share, and their geometric mean.
    """
    found = [
        Surrounding("near", {"adaptive": 90.0, "16": 100.0}),
        Surrounding("far", {"adaptive": 400.0, "16": 4.0}),
    ]
    by_name = {entry.name: entry for entry in entries(found)}

    assert summary(found) == {
        "adaptive": (0.9, pytest.approx(0.9**0.5)),
        "16": (0.01, pytest.approx(0.1)),
    }
    assert by_name["window 16, far"].ratio == 0.01
    assert by_name["window 16, far"].reference_value == 400
    assert by_name["window adaptive: worst share of the best"].value == 0.9


def test_ratios_are_of_medians_and_of_turns():
    """
    The ratio is of the medians; beside it stand the least and the largest of the turns.
    """
    ratio = Ratio("a", "b", [90.0, 100.0, 50.0], [100.0, 200.0, 100.0])

    assert ratio.value == 0.9
    assert ratio.turns == [0.5, 0.5, 0.9]
    assert (ratio.entry().value, ratio.entry().reference_value) == (90, 100)


def test_times_are_shown_by_quantiles():
    """
    Half of them, 99 of 100 and all took no longer.
    """
    times = Times("receipts", [float(each) for each in range(1, 201)])

    assert times.figures == {"p50": 101.0, "p99": 199.0, "max": 200.0}
    assert [entry.name for entry in times.entries()] == [
        "receipts: p50",
        "receipts: p99",
        "receipts: max",
    ]
    slow = Times("others", [4 * each for each in times.each])
    assert {(entry.reference, entry.ratio) for entry in slow.entries(times)} == {("receipts", 4.0)}


@pytest.mark.slow
@pytest.mark.live
def test_writes_under_pressure_are_measured(tmp_path):
    """
    `--only pressure` needs no Spark and compares windows, others beside a paused subject, what the
    protocol costs, and times of receipts and of rows by priority.
    """
    entries = run_bench(tmp_path, "--rows", "100000", "--only", "pressure")
    values = {entry["name"]: entry["value"] for entry in entries}
    compared = {entry["name"]: entry["reference"] for entry in entries if entry["reference"]}

    assert sum(name.startswith("window adaptive, ") for name in values) == 9
    assert 0 < values["window adaptive: worst share of the best"] <= 1
    assert compared["others, one row of 100 paused by an operator"] == "others alone"
    assert compared["others, one row of 100 at its limit"] == "others alone"
    assert compared["a throttleSubject"] == "throttleSubject=none"
    assert compared["priorities by subject"] == "without"
    assert compared["normal rows under overload: p99"] == "critical rows under overload"
    for name in ("receipts at full rate", "critical rows under overload"):
        assert 0 < values[f"{name}: p50"] <= values[f"{name}: p99"] <= values[f"{name}: max"]
    assert all(entry["value"] >= 0 for entry in entries)


ABOUT = {
    "taken": "2026-01-02T03:04+00:00", "commit": "abc", "rows": 5, "repeat": 3,
    "machine": "2 cores", "load": 0.1, "versions": {"python": "3.11"},
}  # fmt: skip
CASE = {
    "name": "read one", "bound": "the server", "rows": 5, "rate": 4000, "whole_rate": None,
    "references": {"raw drain": 8000}, "notes": {"raw drain": "half of it"},
    "cpu_s": {"server": 1.5, "worker": 0.25}, "memory_mb": {"worker": 1120},
}  # fmt: skip
MEASURED = {
    "read": {"about": ABOUT, "cases": [CASE], "tables": [], "entries": []},
    "latency": {
        "about": ABOUT | {"settings": "conf/of-spark.conf"},
        "cases": [],
        "tables": [{"columns": ["rate", "p50"], "rows": [["1/s", "7.0"]]}],
        "entries": [
            {"name": f"row, {rate}/s: {quantile}", "value": 7.0}
            for rate in ("1", "2,000")
            for quantile in ("p50", "p99")
        ],
    },
    "scale": {
        "about": ABOUT,
        "cases": [
            CASE
            | {"name": "scale read, 2 partitions", "references": {"Spark alone": 8000}}
            | {"references_cpu_s": {"Spark alone": {"jvm": 1.5, "worker": 0.5}}},
            CASE | {"name": "scale read, 64 partitions", "references": {}},
        ],
        "tables": [],
        "entries": [
            {"name": f"scale requests, {n} streams by pattern, live", "value": 9.0}
            for n in ("50", "1,000")
        ],
    },
}


def test_the_page_of_figures_is_made_of_results(tmp_path):
    """
    Each section says when and on what; a table a phase, what bounds its cases, and pictures that
    are the same each time. What was not measured has no section.
    """
    text = page(MEASURED, tmp_path)

    sections = re.findall("^## (.*)$", text, re.M)
    assert sections == ["Streaming reads", "Latency at the live end", "Partitions and streams"]
    assert (
        text.count("*Taken 2026-01-02 03:04 UTC, commit abc, `--rows 5`, medians of 3 runs;") == 3
    )
    assert text.count("Spark set by `conf/of-spark.conf`") == 1
    assert "| one | 4,000 | 8,000 | 0.50 | 1.5 |  | 0.2 |  | 1,120 |  |" in text
    assert "| Spark alone: JVM | Spark alone: workers | MB: worker | JVM |" in text
    alone = "| read, 2 partitions | 4,000 | 8,000 | 0.50 | 1.5 |  | 0.2 |  | 1.5 | 0.5 | 1,120 |  |"
    assert alone in text
    assert "| read, 64 partitions | 4,000 |  |  | 1.5 |  | 0.2 |  |  |  | 1,120 |  |" in text
    assert "| the server | one" in text and "- raw drain: half of it" in text
    assert "| 1/s | 7.0 |" in text
    drawn = {path.name: path.read_bytes() for path in (tmp_path / "_static/bench").iterdir()}
    assert sorted(drawn) == [
        "latency.svg", "read-cpu.svg", "read-rates.svg", "requests.svg", "scale.svg",
    ]  # fmt: skip
    assert set(re.findall(r"\(_static/bench/(.*?)\)", text)) == drawn.keys()
    assert b">raw drain<" in drawn["read-rates.svg"]
    assert page(MEASURED, tmp_path) == text
    assert {
        path.name: path.read_bytes() for path in (tmp_path / "_static/bench").iterdir()
    } == drawn


def test_a_phase_that_was_not_measured_again_keeps_its_section(tmp_path):
    """The page says of each section when it was taken."""
    (tmp_path / "bench.md").write_text(page(MEASURED, tmp_path))
    later = MEASURED["latency"] | {"about": ABOUT | {"commit": "later"}}

    text = page({"latency": later}, tmp_path)

    assert text == page(MEASURED | {"latency": later}, tmp_path)
    assert text.count("commit abc") == 2 and text.count("commit later") == 1


def test_results_of_an_unknown_phase_are_no_page(tmp_path):
    """
    A phase without a section would be missing from the page; it is named.
    """
    with pytest.raises(ValueError, match="no section for other"):
        page({"other": {}}, tmp_path)


def test_a_later_run_keeps_the_phases_that_it_did_not_measure(tmp_path):
    """
    `bench-results.json` grows phase by phase.
    """
    path = tmp_path / "bench-results.json"
    path.write_text(json.dumps(MEASURED))
    results = Results(Console(quiet=True))
    results.begin("read", About(**ABOUT))
    results.write(path)

    found = json.loads(path.read_text())
    assert found["read"]["cases"] == [] and found["scale"] == MEASURED["scale"]
