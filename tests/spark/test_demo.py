"""The demo is a test of everything together, and the first thing that anybody runs."""

import subprocess
import sys

import pytest

from ..kits.places import ROOT


@pytest.mark.live
def test_the_demo_ends_with_every_step_right():
    """`python jobs/demo.py` writes, reads back, compares, shows its tables and exits with 0."""
    ran = subprocess.run(
        [sys.executable, str(ROOT / "jobs/demo.py")],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.count("✓") == 6 and "✗" not in ran.stdout
    for partition in range(4):
        assert f"FLIGHTS-{partition}" in ran.stdout
