"""The benchmarks run, and what they write has the documented shape."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.live
def test_read_benchmarks_write_their_results(tmp_path):
    """
    `python -m bench` measures every read against its references and leaves bench-results.json.
    """
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-m", "bench", "--rows", "20000", "--only", "read"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=900,  # seconds on a calm machine are minutes on a busy one
    )

    assert done.returncode == 0, done.stdout + done.stderr
    entries = json.loads((tmp_path / "bench-results.json").read_text())
    assert [path.name for path in tmp_path.iterdir()] == ["bench-results.json"]
    assert {tuple(entry) for entry in entries} == {
        ("name", "value", "unit", "reference", "reference_value", "ratio")
    }
    assert all(entry["name"].startswith("read ") and entry["value"] >= 0 for entry in entries)
    rates = [entry for entry in entries if entry["reference"] is not None]
    assert len({entry["name"] for entry in rates}) == 7
    assert {entry["reference"] for entry in rates} == {"raw drain", "nats-py"}
    for entry in rates:
        expected = entry["value"] / entry["reference_value"]
        assert entry["ratio"] == pytest.approx(expected, abs=1e-3)
    others = [entry for entry in entries if entry not in rates]
    assert {entry["unit"] for entry in rates} == {"rows/s"}
    assert {entry["unit"] for entry in others} == {"rows/s", "CPU-s/1M rows", "MB"}
    assert all(entry["reference"] is entry["ratio"] is None for entry in others)
