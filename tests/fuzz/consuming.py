"""What a consumer delivers: `fetch.decoding.deliveries` and rows of it."""

from __future__ import annotations

import random
from functools import cache
from typing import Any, Final

import pyarrow as pa

from pyspark_jetstream.client import wire
from pyspark_jetstream.client.blocks import stored_before
from pyspark_jetstream.errors import ProtocolError, ReadError
from pyspark_jetstream.fetch.decoding import markers
from pyspark_jetstream.fetch.decoding.deliveries import Deliveries
from pyspark_jetstream.fetch.decoding.replies import Columns
from pyspark_jetstream.fetch.decoding.rows import RowBuilder

from ..kits.messages import EMPTY, SID
from . import reference
from .cases import Case, Fault, same
from .feed import counted
from .getting import batch_of
from .material import BETWEEN, SHAPES, STATUSES, delivered
from .mutations import mutated

_BINARY: Final = pa.binary()
_SMALL: Final = {"_MIN_MESSAGES": 1, "_WINDOW_BYTES": 2000}
"""So that cuts by the column are made of few messages."""

_POOL: Final = 512


class Expected:
    """Rows by the reference, as columns."""

    def __init__(self, rows: list[reference.Row]) -> None:
        self.facts = [row.facts for row in rows]
        self.columns = Columns(
            pa.array([row.subject for row in rows], _BINARY),
            pa.array([row.sequence for row in rows], pa.int64()),
            pa.array([row.time for row in rows], pa.int64()),
            pa.array([row.data for row in rows], _BINARY),
            pa.array([row.stored for row in rows], _BINARY),
        )
        times = [reference.micros(row.time) for row in rows]
        self.batch = batch_of(rows, times)
        """None where a subject is no text."""
        headers = [reference.stored_headers(row.stored) for row in rows]
        self.operations = pa.array([reference.operation(each) for each in headers])

    def __len__(self) -> int:
        return len(self.facts)


class _Reader:
    """Takes frames as `pulling.pulls` does, and compares each batch as soon as it is full."""

    def __init__(self, expected: Expected, keep: bool, build: bool) -> None:
        self.expected, self.keep, self.build = expected, keep, build
        self.rows = 0
        self.turns = 0
        self._frames = Deliveries(keep)
        self._builder = RowBuilder("S", keep, partition=3)
        self._may_scan = False

    def run(self, case: Case) -> tuple[int | None, str]:
        """Where it ended, if that is known, and why (`reference.Taken`)."""
        pieces = case.chunks()
        buffer, base, pos = b"", 0, 0
        frames = self._frames
        while True:
            self.turns += 1
            if self._may_scan:
                before = pos
                try:
                    pos = frames.scan(buffer, pos, SID)
                except ProtocolError:
                    self._flush()
                    return None, "fault"
                if pos < before:
                    raise Fault(f"a scan went back from {before} to {pos}")
                if frames.full:
                    self._flush()
                    continue
            try:
                found, where = wire.next_frame(buffer, pos)
            except ProtocolError:
                self._flush()
                return base + pos, "fault"
            if found is None:
                if where < 1:
                    raise Fault(f"{where} bytes are asked for")
                came, more = [buffer[pos:]], 0
                for piece in pieces:
                    came.append(piece)
                    more += len(piece)
                    if more >= where:
                        break
                if not more:
                    self._flush()
                    return base + pos, "end" if pos == len(buffer) else "incomplete"
                base += pos
                buffer, pos = b"".join(came), 0
                continue
            if where <= pos:
                raise Fault(f"a frame at {pos} ends at {where}")
            at, pos = base + pos, where
            if isinstance(found, wire.Control) or found.sid != SID:
                continue
            if not found.reply.startswith(b"$JS.ACK."):
                wire.status_of(found.headers)
                continue
            self._may_scan = True
            try:
                frames.add(found, stored_before(found.headers))
            except ProtocolError:
                self._flush()
                return at, "fault"
            if frames.full:
                self._flush()

    def _flush(self) -> None:
        frames, expected = self._frames, self.expected
        count = len(frames)
        if not count:
            return
        begin, end = self.rows, self.rows + count
        if end > len(expected):
            raise Fault(f"{end} rows, of which the reference has {len(expected)}")
        same("first", tuple(frames.first), expected.facts[begin])
        same("last", tuple(frames.last), expected.facts[end - 1])
        columns = frames.columns()
        for name, ours, theirs in zip(Columns._fields, columns, expected.columns, strict=True):
            if ours is not None and not ours.equals(theirs.slice(begin, count)):
                _differ(name, begin, ours, theirs.slice(begin, count))
        if self.build:
            self._check_rows(columns, begin, count)
        self.rows = end
        frames.clear()

    def _check_rows(self, columns: Columns, begin: int, count: int) -> None:
        expected = self.expected
        try:
            batch = self._builder.batch(columns, -1, reference.MOST)
        except ReadError:
            same("whether all subjects are text", False, expected.batch is not None)
            return
        if expected.batch is None:  # some subject of it is none, but not of these rows
            return
        theirs = expected.batch.slice(begin, count)
        for name, ours in zip(batch.schema.names, batch.columns, strict=True):
            if not ours.equals(theirs.column(name)):
                _differ(name, begin, ours, theirs.column(name))
        if self.keep:
            operations = markers.operations(batch.column("headers"))
            if not operations.equals(expected.operations.slice(begin, count)):
                _differ("operation", begin, operations, expected.operations.slice(begin, count))


def _differ(name: str, begin: int, ours: pa.Array, theirs: pa.Array) -> None:
    for row, (one, other) in enumerate(zip(ours.to_pylist(), theirs.to_pylist(), strict=True)):
        same(f"{name} of row {begin + row}", one, other)
    raise Fault(f"{name} differ in their types: {ours.type}, {theirs.type}")


def check(case: Case) -> int:
    """Against the reference on the whole stream; how many frames that is."""
    taken = reference.deliveries(case.stream, SID)
    frames = len(reference.read(case.stream).frames)
    expected = Expected(taken.rows)
    keep, build = case.flags.get("keep", True), case.flags.get("build", True)
    small: dict[str, Any] = _SMALL if case.flags.get("small") else {}
    with counted(**small) as work:
        reader = _Reader(expected, keep, build)
        where, ended = reader.run(case)
    same("why it ends", ended, taken.why)
    same("rows", reader.rows, len(expected))
    if where is not None:
        same("where it ends", where, taken.at)
    pieces = sum(1 for _ in case.chunks())
    if not small:
        work.check(len(case.stream), frames, pieces)
    if reader.turns > 2 * frames + 2 * pieces + 100:
        raise Fault(f"{reader.turns} turns for {frames} frames in {pieces} pieces")
    return frames + (taken.why != "end")


@cache
def _pool(number: int) -> list[bytes]:
    """Frames of which streams are made: of each fourth pool all of hostile publishers."""
    rng, wild = random.Random(number), number % 4 == 3
    few = set(rng.choices(range(_POOL), k=rng.choice((0, 0, 0, 1, 2))))
    shapes = rng.sample(SHAPES, 2 if number % 5 == 4 else 1)
    even = rng.choice((b"", EMPTY, b"NATS/1.0\r\nNats-Msg-Id: 7\r\n\r\n"))
    if wild or number % 2:
        even = None
    frames = []
    for each in range(_POOL):
        odd = wild or each in few
        shape = rng.choice(shapes)
        frames.append(delivered(rng, odd, shape, each, even=None if odd else even))
    if wild or number % 5 == 0:
        for _ in range(50 if wild else rng.choice((1, 1, 5))):
            frames[rng.randrange(_POOL)] = rng.choice(BETWEEN + STATUSES)
    return frames


def case(rng: random.Random) -> Case:
    """A stream, with faults or without; often so long that it is cut by the column."""
    made = random.Random(rng.randrange(1 << 32))
    frames = made.choices(_pool(made.randrange(16)), k=made.choice((1, 3, 20, 90, 150, 300, 900)))
    stream = mutated(rng, frames) if made.random() < 0.7 else b"".join(frames)
    flags = {"keep": made.random() < 0.5, "small": made.random() < 0.2}
    return Case("deliveries", stream, rng.choice((0, rng.randrange(1 << 32))), flags)
