"""What an endurance run judges by: what is flat, which numbers are missing, what is drawn."""

from __future__ import annotations

import re
import subprocess
import sys
from xml.etree import ElementTree

import pytest

from bench.endurance.chart import Panel, drawn
from bench.endurance.ends import Marks
from bench.endurance.flatness import RULES, Rule, judge
from bench.endurance.processes import look


def series(name, values):
    """Samples of one series, ten seconds apart."""
    return [{"seconds": 10.0 * at, name: value} for at, value in enumerate(values, 1)]


RISES = [100.0] * 20 + [100.0 + 2 * at for at in range(20)]


@pytest.mark.parametrize(
    ("values", "flat"),
    [
        ([100.0] * 40, True),
        ([0.0] * 9 + [100.0] * 31, True),  # the first quarter fills what fills once
        (RISES, False),
        ([*reversed(RISES)], True),
        ([100.0] * 30 + [900.0] * 4 + [100.0] * 6, True),  # for a moment
        ([100.0] * 30 + [114.9] * 10, True),
        ([100.0] * 30 + [115.1] * 10, False),
    ],
    ids=["flat", "fills", "rises", "falls", "peak", "within", "beyond"],
)
def test_what_is_flat(values, flat):
    """
    The median of the last quarter may be above that of the second by a share and an amount.
    """
    (judged,) = judge(series("a.b", values), [Rule(r"a\..*", 0.05, 10)])

    assert judged.is_flat is flat


def test_what_is_gone_holds_nothing():
    """
    A series without a value at some time counts as 0 then: what comes up later has grown. Figures
    that are not taken every time count where they are.
    """
    samples = [{"seconds": float(at), "jvm.live_heap_mib": 50.0} for at in range(1, 5)]
    samples += [{"seconds": float(at)} for at in range(5, 81)]
    samples += [{"seconds": float(at), "worker.fds": 9.0} for at in range(81, 101)]
    samples[40]["jvm.live_heap_mib"] = samples[90]["jvm.live_heap_mib"] = 70.0
    judged = {each.name: each for each in judge(samples)}

    assert (judged["worker.fds"].second, judged["worker.fds"].last) == (0.0, 9.0)
    assert not judged["worker.fds"].is_flat
    assert (judged["jvm.live_heap_mib"].second, judged["jvm.live_heap_mib"].last) == (70.0, 70.0)


def test_one_rule_for_each_series():
    """
    The first rule that matches a series holds; what has none is not judged.
    """
    names = ["jvm.threads", "source.threads", "server.pss_mib", "publisher.pss_mib", "load"]
    samples = [dict.fromkeys(names, 1.0) | {"seconds": float(at)} for at in range(1, 41)]
    judged = {each.name: each.rule for each in judge(samples)}

    assert set(judged) == set(names[:3])
    assert judged["jvm.threads"].share > judged["source.threads"].share
    assert all(re.compile(rule.series) for rule in RULES)


@pytest.mark.parametrize(
    ("numbers", "fault"),
    [([1, 2, 3], ""), ([2, 1, 3], ""), ([1, 3], "number 2"), ([1, 2, 2, 3], "1 messages doubled"),
     ([1, 3, 3, 2], "1 messages doubled")],
    ids=["in order", "out of order", "lost", "doubled", "doubled ahead"],
)  # fmt: skip
def test_marks(numbers, fault):
    """
    Numbers are exact when each from 1 on came once, in whatever order.
    """
    marks = Marks()
    marks.note(numbers)
    if fault:
        with pytest.raises(RuntimeError, match=fault):
            _ = marks.exact
    else:
        assert marks.exact == len(numbers)


def test_processes_are_looked_at_by_role():
    """
    What a known process holds, and what it has started, which counts with it.
    """
    code = "import sys; print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None and child.stdin is not None
        child.stdout.readline()
        held = look({child.pid: "driver"})
        child.stdin.close()

    assert held["driver.processes"] == held["driver.threads"] == 1
    assert held["driver.fds"] >= 3
    assert 0 < held["driver.pss_mib"] <= held["driver.rss_mib"]
    assert look({child.pid: "driver"}) == {}


def test_a_drawing():
    """
    The drawing is SVG with the names of the series that have values, small however many they are.
    """
    samples = [{"seconds": float(at), "a": at % 7.0} for at in range(1, 5000)]
    text = drawn([Panel("One & two", {"a": "one", "b": "two"}), Panel("None", {"c": "c"})], samples)
    said = {each.text for each in ElementTree.fromstring(text).iter() if each.tag.endswith("text")}

    assert {"One & two", "None", "one"} <= said
    assert not {"two", "c"} & said
    assert len(text) < 40_000
