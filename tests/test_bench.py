"""The benchmarks run, and what they write has the documented shape."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

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
        timeout=900,  # seconds on a calm machine are minutes on a busy one
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert [path.name for path in directory.iterdir()] == ["bench-results.json"]
    entries = json.loads((directory / "bench-results.json").read_text())
    assert {tuple(entry) for entry in entries} == {FIELDS}
    return entries


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.live
@pytest.mark.parametrize(
    ("phase", "cases", "references"),
    [
        ("read", 6, {"raw drain", "nats-py"}),
        # Flights; then three payloads in three modes, with ids and without.
        (
            "write",
            1 + 3 * 3 * 2,
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
        assert entry["ratio"] == pytest.approx(expected, rel=1e-3, abs=1e-3)
    others = [entry for entry in entries if entry not in rates]
    assert {entry["unit"] for entry in rates} == {"rows/s"}
    assert {entry["unit"] for entry in others} <= {"rows/s", "CPU-s/1M rows", "MB"}
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
