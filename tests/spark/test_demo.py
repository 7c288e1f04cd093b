"""The demo is a test of everything together, and the first thing that anybody runs."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pytest

from ..kits.places import ROOT


def test_the_demo_sees_a_swap_a_loss_and_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Payloads of one subject in another order, one fewer or one twice compare as different."""
    monkeypatch.syspath_prepend(str(ROOT / "jobs"))
    from checking import by_subject

    right = by_subject(pa.table({"subject": ["a", "b", "a"], "data": ["1", "2", "3"]}))
    moved = by_subject(pa.table({"subject": ["b", "a", "a"], "data": ["2", "1", "3"]}))
    swapped = by_subject(pa.table({"subject": ["a", "b", "a"], "data": ["3", "2", "1"]}))
    fewer = by_subject(pa.table({"subject": ["a", "b"], "data": ["1", "2"]}))
    twice = by_subject(pa.table({"subject": ["a", "b", "a", "a"], "data": ["1", "2", "3", "3"]}))

    assert moved == right
    assert right not in (swapped, fewer, twice)


@pytest.mark.slow
@pytest.mark.live
def test_the_demo_ends_with_every_step_right() -> None:
    """`python jobs/demo.py` writes, reads back, compares, shows its tables and exits with 0."""
    ran = subprocess.run(
        [sys.executable, str(ROOT / "jobs/demo.py")],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stderr == ""
    for title in ("Every count and every order", "Subject partitions", "Busiest origins"):
        assert title in ran.stdout
    assert "✗" not in ran.stdout
    for partition in range(4):
        assert f"FLIGHTS-{partition}" in ran.stdout
