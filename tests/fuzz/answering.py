"""Answers to publishes: what `publish.sender` reads, `lane` and `answers` understand."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

from pyspark_jetstream.client import wire
from pyspark_jetstream.publish.lanes.answers import Outcome, classify
from pyspark_jetstream.publish.lanes.lane import Lane
from pyspark_jetstream.publish.sender import Sender

from ..kits.lanes import FixedLimit, terms
from ..kits.options import connection_of, sink_of
from . import reference, referenceacks
from .cases import TYPED, Case, Sound, same
from .feed import Feed, counted
from .material import BETWEEN, INBOX, SID, ack_frame, msg
from .mutations import mutated
from .referenceacks import Acks, Meaning

_LANES: Final = 2
_SINK: Final = sink_of(connection_of("nats://fuzz"))


class _Lane(Lane):
    """A lane that only notes what it hears."""

    def __init__(self, number: int) -> None:
        prefix = f"{INBOX.decode()}.{number}"
        super().__init__(prefix, terms(FixedLimit(1), 1, 1.0, 1.0))
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


class Pool:
    """Answers of which streams are made, each read once by the reference."""

    def __init__(self, rng: random.Random, wild: bool, size: int = 1024) -> None:
        self.wild = wild
        plain = self.plain = not self.wild and rng.random() < 0.9
        mark = rng.choice((b"", b"", b',"duplicate": true'))
        few = set(rng.choices(range(size), k=rng.choice((0, 0, 0, 1))))
        self.frames = []
        while len(self.frames) < size:
            number = len(self.frames)
            if plain and number not in few:
                frame = _plain(rng, number, mark)
            else:
                frame = ack_frame(rng, self.wild or not plain, number)
            self.frames.append(frame)
        if rng.random() < 0.1:
            self.frames[rng.randrange(size)] = rng.choice(BETWEEN)
        self.answers: list[tuple[int, tuple[int, Meaning]] | None] = []
        for frame in self.frames:
            heard = referenceacks.acks(frame, SID, INBOX, _LANES)
            assert heard.why == "end", frame
            lanes = [(lane, said[0]) for lane, said in enumerate(heard.lanes) if said]
            self.answers.append(lanes[0] if lanes else None)


def sound(rng: random.Random, pool: Pool) -> Iterator[Sound]:
    """A long sound stream of the pool's frames, in some ways."""
    count = rng.choice((20_000, 40_000)) if pool.plain else rng.choice((500, 2000))
    picked = rng.choices(range(len(pool.frames)), k=count)
    stream = b"".join([pool.frames[place] for place in picked])
    lanes: list[list[tuple[int, Meaning]]] = [[] for _ in range(_LANES)]
    for answer in map(pool.answers.__getitem__, picked):
        if answer is not None:
            lanes[answer[0]].append(answer[1])
    for _ in range(3):
        case = Case("acks", stream, rng.randrange(1, 1 << 32))
        yield Sound(case, count, partial(_run, case, Acks(lanes, len(stream), "end"), count))


def broken(rng: random.Random, pool: Pool) -> Case:
    """A short stream of answers, plain ones or such as nobody expects, with faults or without."""
    numbers = range(rng.choice((1, 3, 10, 40)))
    if rng.random() < 0.5:
        frames = [_plain(rng, number) for number in numbers]
        return Case("acks", mutated(rng, frames), rng.choice((0, rng.randrange(1 << 32))))
    frames = [
        ack_frame(rng, rng.random() < 0.8, rng.choice((number, rng.randrange(10**18))))
        for number in numbers
    ]
    if rng.random() < 0.2:
        frames.insert(rng.randrange(len(frames)), rng.choice(BETWEEN))
    stream = b"".join(frames) if rng.random() < 0.5 else mutated(rng, frames)
    return Case("acks", stream, rng.choice((0, rng.randrange(1 << 32))))
