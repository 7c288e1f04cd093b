"""What a reader walks who follows one row from `publish` to its PubAck."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from types import FrameType

import pyspark_jetstream
from pyspark_jetstream.outbox.admission import Leaving
from pyspark_jetstream.outbox.messages import Messages
from pyspark_jetstream.outbox.rowqueue import Block
from pyspark_jetstream.publish.lanes.frames import Publishes

from ...kits.world import World, block

HOUSE = str(Path(pyspark_jetstream.__file__).parent)
FORMS = (Messages, Block, Leaving, Publishes)
"""What the row is on its way, beside bytes."""

MAX_RETURNS, MAX_FLOORS = 20, 5


class Walk:
    """The rooms, which are modules, of the functions that get the row, and what stands on what."""

    def __init__(self) -> None:
        self.stays: list[str] = []
        """Each function counts once; one behind the other in the same room are one stay."""
        self.floors = 0
        """The most rooms of the wing `publish` that are under way at one time."""
        self._stack: list[str] = []
        self._seen: set[object] = set()

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        code = frame.f_code
        if not code.co_filename.startswith(HOUSE) or event not in ("call", "return"):
            return
        if event == "return":
            del self._stack[-1:]
            return
        room = code.co_filename[len(HOUSE) + 1 : -len(".py")]
        self._stack.append(room)
        own = {each for each in self._stack if each.startswith("publish")}
        self.floors = max(self.floors, len(own))
        given = [frame.f_locals[name] for name in code.co_varnames[: code.co_argcount]]
        if not self._seen & {code} and any(map(is_the_row, given)):
            self._seen.add(code)
            if self.stays[-1:] != [room]:
                self.stays.append(room)

    @property
    def returns(self) -> int:
        """Stays in rooms where one was before."""
        return len(self.stays) - len(set(self.stays))


def is_the_row(value: object) -> bool:
    """The row, as messages or frames, or the bytes of its PubAck."""
    return isinstance(value, FORMS) or (isinstance(value, bytes | bytearray) and b'"seq"' in value)


def test_a_row_is_followed_without_going_back_and_forth(monkeypatch):
    """
    Over no more than five floors of `publish`, with no more than twenty returns to a room.
    """
    world = World(monkeypatch, [block("a", 0)], random.Random(1), publish_mode="async")
    world.net.chaos, walk = 0.0, Walk()
    sys.setprofile(walk)
    try:
        counts = world.run()
    finally:
        sys.setprofile(None)

    assert counts.acked == 1
    assert {"publish/publisher", "publish/lanes/asynclane", "publish/sender"} <= {*walk.stays}
    assert {"outbox/admission", "publish/lanes/frames"} <= {*walk.stays}
    assert walk.returns <= MAX_RETURNS, walk.stays
    assert walk.floors <= MAX_FLOORS
