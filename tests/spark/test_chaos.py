"""The program of random faults, once: a handful of them, one server."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ..kits import seeds
from ..kits.places import ROOT


@pytest.mark.parametrize("seed", seeds.fresh(__name__))
def test_a_handful_of_faults(tmp_path: Path, seed: int) -> None:
    """
    A query that copies a stream amid six random faults has copied each message once when they are
    over, and the program's line of results says so.
    """
    results = tmp_path / "results.jsonl"
    words = ["--seed", str(seed), "--faults", "6", "--case", "streams,limits,1"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos", *words, "--results", str(results),
         "--home", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    found = json.loads(results.read_text())
    verdict = found["verdict"]

    assert done.returncode == 0, f"seed {seed}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    assert len(found["each"]) == found["faults"] == sum(found["kinds"].values()) == 6
    assert verdict["published"] > 100
    assert verdict["copied"] == verdict["published"] + verdict["unacked_copied"]
    assert (verdict["lost"], verdict["doubled"]) == (0, 0)
