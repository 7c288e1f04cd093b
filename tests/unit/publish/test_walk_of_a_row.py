"""What a reader walks who follows one row from `publish` to its PubAck."""

from __future__ import annotations

import random

import pytest

from pyspark_jetstream.outbox.admission import Leaving
from pyspark_jetstream.outbox.messages import Messages
from pyspark_jetstream.outbox.rowqueue import Block
from pyspark_jetstream.publish.lanes.frames import Publishes

from ...kits.walk import Walk, followed
from ...kits.world import World, block

FORMS = (Messages, Block, Leaving, Publishes)
"""What the row is on its way, beside bytes."""


def is_the_row(value: object) -> bool:
    """The row, as messages or frames, or the bytes of its PubAck."""
    return isinstance(value, FORMS) or (isinstance(value, bytes | bytearray) and b'"seq"' in value)


@pytest.mark.parametrize(
    ("mode", "subjects", "returns", "floors"),
    [
        ("async", "a", 13, 5),
        ("fast", "a", 9, 6),
        ("fast", "aa", 11, 6),
        ("atomic", "a", 8, 6),
        ("atomic", "aa", 8, 6),
    ],
)
def test_a_row_is_followed_without_going_back_and_forth(
    monkeypatch, mode, subjects, returns, floors
):
    """
    Over no more floors of `publish`, with no more returns to a room, than are noted here: one row,
    or the rows of a batch.
    """
    world = World(monkeypatch, [block(subjects, 0)], random.Random(1), publish_mode=mode)
    world.net.chaos = 0.0
    with followed(Walk("publish", is_the_row)) as walk:
        counts = world.run()

    assert counts.acked == len(subjects)
    assert {"publish/publisher", f"publish/lanes/{mode}lane", "publish/sender"} <= {*walk.stays}
    assert {"outbox/admission", "publish/lanes/frames"} <= {*walk.stays}
    assert walk.returns <= returns, walk.stays
    assert len(walk.floors) <= floors, walk.floors
