"""What a watch has seen, drawn."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyspark_jetstream.operations.inspection.findings import (
    CheckpointState,
    ConsumerState,
    Inspection,
    PositionState,
    SourceState,
)
from pyspark_jetstream.operations.inspection.trends import ASCII, BLOCKS, Trends, sparkline


def looked(**lags: int | None) -> Inspection:
    """A look that found these consumers; one without a lag does not answer."""
    consumers = tuple(
        ConsumerState("S", name, lag=lag or 0, problems=("no leader answers",) * (lag is None))
        for name, lag in lags.items()
    )
    return Inspection("t", "nats://h", (), (), consumers, None)


@pytest.mark.parametrize(
    ("values", "drawn"),
    [
        ([], ""),
        ([0, 0], "▁▁"),
        ([0, 1, 700], "▁▂█"),
        ([100.0, 50.0, None, 0.0], "█▅ ▁"),
        ([-3, 4], "▁█"),
        ([None], " "),
    ],
)
def test_a_line_of_values(values, drawn):
    """
    Heights are between nothing and the largest; what is little is still more than nothing.
    """
    assert sparkline(values) == drawn
    assert sparkline(values, ASCII) == drawn.translate(str.maketrans(BLOCKS, ASCII))


def drawn(trends: Trends, inspection: Inspection) -> dict[tuple[str, str], tuple]:
    trends.see(inspection)
    return {(each.of, each.what): (each.now, each.looks) for each in trends.drawn(inspection)}


def test_one_look_is_no_trend():
    """
    Before the second look nothing is drawn, nor of what never had a value.
    """
    trends = Trends()
    first = drawn(trends, looked(a=4, b=None))
    second = drawn(trends, looked(a=8, b=None))

    assert first == {}
    assert second == {("consumer S/a", "lag"): (8, "▅█")}


def test_only_the_last_looks_are_drawn():
    """
    A line does not grow for ever, and what comes and goes has gaps.
    """
    trends = Trends()
    for lag in (9, *[1] * 30):
        trends.see(looked(a=lag))
    gone = drawn(trends, looked(b=3))
    back = drawn(trends, looked(a=1, b=None))

    assert gone == {("consumer S/b", "lag"): (3, "█")}
    assert back[("consumer S/a", "lag")] == (1, "█" * 22 + " █")
    assert back[("consumer S/b", "lag")] == (None, "█ ")


def test_a_checkpoint_goes_before_its_consumers():
    """
    Where a checkpoint is shown its lags and rates are drawn, and not its consumers' as well.
    """
    position = PositionState(
        1, "S", None, committed=4, planned=4, first=1, last=9, consumer=4, lag=5, read_rate=2.0
    )
    source = SourceState("0", "q", positions=(position,))
    checkpoint = CheckpointState("/c", "id", 1, 1, (source,), 0)
    trends = Trends()
    trends.see(looked(a=4))
    found = drawn(trends, replace(looked(a=4), checkpoint=checkpoint))

    assert found == {
        ("source 0, partition 1 of S", "lag"): (5, "█"),
        ("source 0, partition 1 of S", "read/s"): (2.0, "█"),
    }
