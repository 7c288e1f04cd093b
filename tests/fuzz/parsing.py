"""Frames and header blocks by themselves: `client.wire`, `client.blocks`, headers of rows."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from typing import Any

from pyspark_jetstream.client import blocks, wire
from pyspark_jetstream.errors import ProtocolError
from pyspark_jetstream.fetch.decoding import markers, rows

from . import reference
from .cases import Case, Fault, Sound, same
from .feed import counted
from .material import BETWEEN, INBOX, SHAPES, STATUSES, ack_frame, delivered, msg, payload, run
from .mutations import mutated

_CONTROL = reference.CONTROL


def _shape(frame: reference.Frame) -> tuple[Any, ...]:
    if frame.verb in _CONTROL:
        return frame.verb, frame.data
    return frame.subject, frame.sid, frame.reply, frame.headers, frame.data


def _run(case: Case, expected: list[tuple[Any, ...]], at: int, why: str) -> None:
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
    same("why it ends", ended, why)
    same("where it ends", base + pos, at)
    if found != expected:
        same("how many frames", len(found), len(expected))
        for place, (one, other) in enumerate(zip(found, expected, strict=True)):
            same(f"frame {place}", one, other)
    work.check(len(case.stream), len(expected), pieces)


def check(case: Case) -> int:
    """Against the reference; how many frames that is."""
    whole = reference.read(case.stream)
    _run(case, list(map(_shape, whole.frames)), whole.at, whole.why)
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
    same("stored headers", headers, stored.headers)
    same("odd", lines is None or rows._has_others(lines), stored.odd)
    same("operation", markers.operation(headers), reference.operation(stored.headers))


class Pool:
    """Frames of all kinds, each read once by the reference."""

    def __init__(self, rng: random.Random, wild: bool, size: int = 512) -> None:
        shape = rng.choice(SHAPES)
        frames = [delivered(rng, wild, shape, number) for number in range(size // 2)]
        frames += [ack_frame(rng, True, number) for number in range(size // 8)]
        frames += run(rng, True, 1, size // 8, 0)[0]
        while len(frames) < size:
            noise = rng.choice((*BETWEEN, *STATUSES))
            plain = msg(rng.choice((b"a", INBOX)), rng.choice((b"", b"r")), payload(rng, True))
            frames.append(rng.choice((noise, plain)))
        self.frames = frames
        self.shapes = []
        for frame in frames:
            whole = reference.read(frame)
            assert whole.why == "end", frame
            self.shapes.append(_shape(whole.frames[0]))


def sound(rng: random.Random, pool: Pool) -> Iterator[Sound]:
    """A long sound stream of the pool's frames, in some ways; and each of its header blocks."""
    every = Case("frames", b"".join(rng.sample(pool.frames, 100)))
    yield Sound(every, 100, partial(check, every))
    picked = rng.choices(range(len(pool.frames)), k=rng.choice((100, 2000, 5000)))
    stream = b"".join([pool.frames[place] for place in picked])
    expected = [pool.shapes[place] for place in picked]
    for _ in range(3):
        case = Case("frames", stream, rng.randrange(1, 1 << 32))
        yield Sound(case, len(picked), partial(_run, case, expected, len(stream), "end"))


def broken(rng: random.Random, pool: Pool) -> Case:
    """A short stream with faults."""
    frames = rng.choices(pool.frames, k=rng.choice((1, 1, 2, 5, 20)))
    return Case("frames", mutated(rng, frames), rng.choice((0, rng.randrange(1 << 32))))
