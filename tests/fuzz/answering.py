"""Answers to publishes: what `publish.sender` reads, `lane` and `answers` understand."""

from __future__ import annotations

import random
import time
from types import SimpleNamespace
from typing import Any, Final

from pyspark_jetstream.client import wire
from pyspark_jetstream.publish.lanes.answers import Outcome, classify
from pyspark_jetstream.publish.lanes.lane import Lane
from pyspark_jetstream.publish.sender import Sender

from ..kits.lanes import FixedLimit, terms
from ..kits.messages import INBOX, SID, msg
from ..kits.options import connection_of, sink_of
from . import reference, referenceacks
from .cases import TYPED, Case, same
from .feed import Feed, counted
from .material import BETWEEN, ack_frame
from .mutations import mutated
from .referenceacks import Acks, Meaning

_LANES: Final = 2
_SINK: Final = sink_of(connection_of("nats://fuzz"))


class _Lane(Lane):
    """A lane that only notes what it hears."""

    def __init__(self, number: int) -> None:
        prefix = f"{INBOX.decode()}.{number}"
        super().__init__(prefix, *terms(FixedLimit(1), 1, 1.0, 1.0))
        self.heard: list[tuple[int, Meaning]] = []

    def on_pubacks(self, ordinals: list[int], now: float, duplicates: bool = False) -> None:
        """PubAcks."""
        said = Meaning("duplicate" if duplicates else "stored")
        self.heard += [(ordinal, said) for ordinal in ordinals]

    def on_answer(self, ordinal: int, outcome: Outcome, now: float) -> None:
        """Any other answer, or one PubAck alone."""
        self.heard.append((ordinal, _meaning(outcome)))


def _meaning(outcome: Outcome) -> Meaning:
    kind = "in process" if outcome.kind.name == "IN_PROCESS" else outcome.kind.name.lower()
    return Meaning(kind, outcome.err_code)


def _run(case: Case, expected: Acks, frames: int) -> None:
    connection: Any = Feed()
    lanes: Any = SimpleNamespace(all=[_Lane(number) for number in range(_LANES)])
    client: Any = SimpleNamespace(connection=connection)
    sender = Sender(client, INBOX.decode(), lanes, _SINK, time)
    sender.listen()
    why, pieces = "end", 0
    with counted() as work:
        try:
            for piece in case.chunks():
                pieces += 1
                connection.buffer = connection.buffer[connection.pos :] + piece
                connection.pos = 0
                for _ in sender.read():
                    pass  # no lane's
        except TYPED:
            why = "fault"
    if why == "end" and connection.pos < len(connection.buffer):
        why = "incomplete"
    same("why it ends", why, expected.why)
    for number, (lane, theirs) in enumerate(zip(lanes.all, expected.lanes, strict=True)):
        if lane.heard != theirs:
            same(f"how many answers of lane {number}", len(lane.heard), len(theirs))
            for place, (one, other) in enumerate(zip(lane.heard, theirs, strict=True)):
                same(f"answer {place} of lane {number}", one, other)
    work.check(len(case.stream), frames, pieces)


def check(case: Case) -> int:
    """Against the reference; how many frames that is."""
    expected = referenceacks.acks(case.stream, SID, INBOX, _LANES)
    frames = reference.read(case.stream).frames
    _run(case, expected, len(frames))
    for frame in frames:
        if frame.verb not in reference.CONTROL:
            check_one(frame.headers, frame.data)
    return len(frames)


def check_one(headers: bytes, data: bytes) -> None:
    """One answer."""
    code, text = wire.status_of(headers) if headers else (0, "")
    same("status", code, reference.status(headers)[0])
    same("PubAck", _meaning(classify(code, text, data)), referenceacks.meaning(code, data))


def _plain(rng: random.Random, number: int, mark: bytes = b"") -> bytes:
    """A PubAck as nearly all are."""
    data = b'{"stream":"S","seq":%d%b}' % (rng.randrange(1, 10**12), mark)
    return msg(b"%b.%d.%d" % (INBOX, rng.choice((0, 0, 1)), number), b"", data)


def case(rng: random.Random) -> Case:
    """Answers, plain ones or such as nobody expects, with faults or without."""
    made = random.Random(rng.randrange(1 << 32))
    numbers = range(made.choice((1, 10, 40, 300, 300)))
    if made.random() < 0.5:
        mark = made.choice((b"", b"", b',"duplicate": true'))
        frames = [_plain(made, number, mark) for number in numbers]
    else:
        wild = made.random() < 0.8
        frames = [
            ack_frame(made, wild, made.choice((number, made.randrange(10**18))))
            for number in numbers
        ]
    if made.random() < 0.2:
        frames.insert(rng.randrange(len(frames)), rng.choice(BETWEEN))
    stream = b"".join(frames) if made.random() < 0.4 else mutated(rng, frames)
    return Case("acks", stream, rng.choice((0, rng.randrange(1 << 32))))
