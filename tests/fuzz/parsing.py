"""Frames and header blocks by themselves: `client.wire`, `client.blocks`, headers of rows."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

from pyspark_jetstream.client import blocks, wire
from pyspark_jetstream.errors import ProtocolError
from pyspark_jetstream.fetch.decoding import markers, rows

from ..kits.messages import INBOX, msg
from . import reference
from .cases import Case, Fault, same
from .feed import counted
from .material import BETWEEN, SHAPES, STATUSES, ack_frame, delivered, payload, run
from .mutations import mutated

_CONTROL = reference.CONTROL


def _shape(frame: reference.Frame) -> tuple[Any, ...]:
    if frame.verb in _CONTROL:
        return frame.verb, frame.data
    return frame.subject, frame.sid, frame.reply, frame.headers, frame.data


def check(case: Case) -> int:
    """Against the reference; how many frames that is."""
    whole = reference.read(case.stream)
    expected = list(map(_shape, whole.frames))
    found: list[tuple[Any, ...]] = []
    buffer, base, pos, ended, pieces = b"", 0, 0, "", 0
    chunks = case.chunks()
    with counted() as work:
        while not ended:
            try:
                frame, where = wire.next_frame(buffer, pos)
            except ProtocolError:
                ended = "fault"
                continue
            if frame is not None:
                if where <= pos:
                    raise Fault(f"a frame at {pos} ends at {where}")
                pos = where
                if isinstance(frame, wire.Control):
                    frame = frame._replace(argument=frame.argument.strip(b" \t"))
                found.append(tuple(frame))
                continue
            if where < 1:
                raise Fault(f"{where} bytes are asked for")
            came, more = [buffer[pos:]], 0
            for piece in chunks:
                pieces += 1
                came.append(piece)
                more += len(piece)
                if more >= where:
                    break
            base += pos
            buffer, pos = b"".join(came), 0
            if not more:
                ended = "incomplete" if buffer else "end"
    same("why it ends", ended, whole.why)
    same("where it ends", base + pos, whole.at)
    if found != expected:
        same("how many frames", len(found), len(expected))
        for place, (one, other) in enumerate(zip(found, expected, strict=True)):
            same(f"frame {place}", one, other)
    work.check(len(case.stream), len(expected), pieces)
    for frame in whole.frames:
        if frame.headers:
            check_block(frame.headers)
    return len(whole.frames) + (whole.why != "end")


def check_block(block: bytes) -> None:
    """All that the package makes of a header block."""
    same("status", wire.status_of(block), reference.status(block))
    same("headers", wire.parse_headers(block), reference.pairs(block))
    got, theirs = blocks.direct(block), reference.got(block)
    same("direct get", got and tuple(got), theirs and tuple(theirs))
    lines, stored = blocks.lines_of(block), reference.stored_headers(block)
    headers = rows.user_headers(lines)
    same("stored headers", headers, stored)
    same("operation", markers.operation(headers), reference.operation(stored))


@cache
def _pool(number: int) -> list[bytes]:
    """Frames of all kinds."""
    rng, shape = random.Random(number), SHAPES[number % len(SHAPES)]
    frames = [delivered(rng, number % 2 == 1, shape, each) for each in range(256)]
    frames += [ack_frame(rng, True, each) for each in range(64)]
    frames += run(rng, True, 1, 64, 0)[0]
    for _ in range(64):
        frames.append(rng.choice((*BETWEEN, *STATUSES)))
        subject = rng.choice((b"a", INBOX))
        frames.append(msg(subject, rng.choice((b"", b"r")), payload(rng, True)))
    return frames


def case(rng: random.Random) -> Case:
    """A stream of them, with faults or without."""
    made = random.Random(rng.randrange(1 << 32))
    frames = made.choices(_pool(made.randrange(8)), k=made.choice((1, 2, 5, 20, 100)))
    stream = mutated(rng, frames) if made.random() < 0.7 else b"".join(frames)
    return Case("frames", stream, rng.choice((0, rng.randrange(1 << 32))))
