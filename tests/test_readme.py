"""What the README says of options and modules is what the code says."""

from __future__ import annotations

import re
from pathlib import Path

from pyspark_jetstream.options import OPTIONS
from pyspark_jetstream.publish.metrics import METRICS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_option_tables():
    """
    Every option stands in the README once for each place it applies to, with its default and its
    sentence; no other does.
    """
    rows = re.findall(r"^\| `(\w+)` \| (?:`([^`]*)`)? \| (.*) \|$", README, re.MULTILINE)

    assert sorted(rows) == sorted((o.name, o.default, o.doc) for o in OPTIONS)


def test_every_module_has_its_place():
    """
    The layout table of the README names every module of the package.
    """
    table = README[README.index("## Layout of the code") :]
    named = set(re.findall(r"`(\w+)`", table))
    modules = {path.stem for path in (ROOT / "pyspark_jetstream").glob("*.py")} - {"__init__"}

    assert modules <= named


def test_a16_a17_what_priorities_cost():
    """
    A16, A17: low priorities wait longer, and never for ever; README and runbook say so, and which
    metric shows it.
    """
    text = " ".join(README.split())
    runbook = " ".join((ROOT / "docs" / "runbook.md").read_text().split())
    metric = "jetstream_publish_queue_time_seconds"

    assert f"low ones wait longer under overload but never for ever (`{metric}` has it" in text
    assert "low priorities wait longer under load is what priorities are for" in runbook
    assert "priority" in METRICS[metric].labels


def test_the_test_command_is_ci_s():
    """
    CI runs the command that the README gives.
    """
    assert "make test" in README
    assert 'TEST_COMMAND="make test"' in (ROOT / ".ci" / "run").read_text()
