"""What a consumer delivers: `fetch.decoding.deliveries` and rows of it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import pyarrow as pa

from pyspark_jetstream.client import wire
from pyspark_jetstream.client.blocks import stored_before
from pyspark_jetstream.errors import ProtocolError, SubjectDecodeError
from pyspark_jetstream.fetch.decoding import markers
from pyspark_jetstream.fetch.decoding.deliveries import Deliveries
from pyspark_jetstream.fetch.decoding.replies import Columns
from pyspark_jetstream.fetch.decoding.rows import RowBuilder, arrow_schema

from . import reference
from .cases import Case, Fault, Sound, same
from .feed import counted
from .material import BETWEEN, EMPTY, SHAPES, SID, STATUSES, delivered
from .mutations import mutated

_BINARY: Final = pa.binary()
_SMALL: Final = {"_MIN_MESSAGES": 1, "_WINDOW_BYTES": 2000}
"""So that cuts by the column are made of few messages."""


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
        self.batch: pa.RecordBatch | None = None
        """None where a subject is no text."""
        headers = [reference.stored_headers(row.stored) for row in rows]
        self.odd = [each.odd for each in headers]
        self.operations = pa.array([reference.operation(each.headers) for each in headers])
        try:
            subjects = [row.subject.decode() for row in rows]
        except UnicodeDecodeError:
            return
        self.batch = pa.record_batch(
            [
                subjects,
                self.columns.payloads,
                self.columns.sequences,
                pa.array([reference.micros(row.time) for row in rows], pa.timestamp("us", "UTC")),
                pa.array([3] * len(rows), pa.int32()),
                ["S"] * len(rows),
                pa.array([each.headers for each in headers], arrow_schema(True)[6].type),
            ],
            schema=arrow_schema(True),
        )

    def __len__(self) -> int:
        return len(self.facts)

    def take(self, places: list[int]) -> Expected:
        """These rows, in this order."""
        other = Expected([])
        indexes = pa.array(places, pa.int32())
        other.facts = [self.facts[place] for place in places]
        other.odd = [self.odd[place] for place in places]
        other.columns = Columns(*(column.take(indexes) for column in self.columns))
        other.operations = self.operations.take(indexes)
        other.batch = self.batch.take(indexes) if self.batch is not None else None
        return other


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
        except SubjectDecodeError:
            same("whether all subjects are text", False, expected.batch is not None)
            return
        if expected.batch is None:  # some subject of it is none, but not of these rows
            return
        theirs = expected.batch.slice(begin, count)
        for name, ours in zip(batch.schema.names, batch.columns, strict=True):
            if not ours.equals(theirs.column(name)):
                _differ(name, begin, ours, theirs.column(name))
        if self.keep:
            same("odd", self._builder.odd, sum(expected.odd[: begin + count]))
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
    _run(case, Expected(taken.rows), taken.at, taken.why, frames)
    return frames + (taken.why != "end")


def _run(case: Case, expected: Expected, at: int, why: str, frames: int) -> None:
    keep, build = case.flags.get("keep", True), case.flags.get("build", True)
    small: dict[str, Any] = _SMALL if case.flags.get("small") else {}
    with counted(**small) as work:
        reader = _Reader(expected, keep, build)
        where, ended = reader.run(case)
    same("why it ends", ended, why)
    same("rows", reader.rows, len(expected))
    if where is not None:
        same("where it ends", where, at)
    pieces = sum(1 for _ in case.chunks())
    if not small:
        work.check(len(case.stream), frames, pieces)
    if reader.turns > 2 * frames + 2 * pieces + 100:
        raise Fault(f"{reader.turns} turns for {frames} frames in {pieces} pieces")


class Pool:
    """Frames of which streams are made, each decoded once by the reference."""

    def __init__(self, rng: random.Random, wild: bool, size: int = 1024) -> None:
        self.wild = wild
        few = set(rng.choices(range(size), k=rng.choice((0, 0, 0, 1, 2))))
        shapes = rng.sample(SHAPES, 2 if rng.random() < 0.03 else 1)
        even = rng.choice((b"", EMPTY, b"NATS/1.0\r\nNats-Msg-Id: 7\r\n\r\n"))
        if self.wild or rng.random() < 0.5:
            even = None
        else:
            shapes = shapes[:1] if rng.random() < 0.3 else [SHAPES[0]]
        odd = [self.wild or number in few for number in range(size)]
        self.frames = [
            delivered(
                rng, odd[number], rng.choice(shapes), number,
                even=None if odd[number] else even,
            )
            for number in range(size)
        ]  # fmt: skip
        if self.wild or rng.random() < 0.15:
            for _ in range(rng.choice((1, 1, 5)) if not self.wild else 50):
                self.frames[rng.randrange(size)] = rng.choice(BETWEEN + STATUSES)
        self.places: list[int] = []
        """Of each frame the row; -1 of what is none."""
        rows: list[reference.Row] = []
        for frame in self.frames:
            taken = reference.deliveries(frame, SID)
            assert taken.why == "end", frame
            self.places.append(len(rows) if taken.rows else -1)
            rows += taken.rows
        self.expected = Expected(rows)


def sound(rng: random.Random, pool: Pool) -> Iterator[Sound]:
    """
    A long sound stream of the pool's frames, delivered in some ways. What the reference says of it
    is what it says of each frame: nothing in a sound stream depends on what stands before.
    """
    count = rng.choice((2000, 5000)) if pool.wild else rng.choice((5000, 20_000, 30_000))
    picked = rng.choices(range(len(pool.frames)), k=count)
    stream = b"".join([pool.frames[place] for place in picked])
    places = [place for place in map(pool.places.__getitem__, picked) if place >= 0]
    expected = pool.expected.take(places)
    for build in (False, True) if rng.random() < 0.3 else (False, False, False):
        flags = {"keep": rng.random() < 0.5, "build": build}
        case = Case("deliveries", stream, rng.randrange(1, 1 << 32), flags)
        yield Sound(case, count, partial(_run, case, expected, len(stream), "end", count))


def broken(rng: random.Random, pool: Pool) -> Case:
    """A short stream with faults."""
    count = rng.choice((1, 3, 20, 90, 150, 300))
    frames = rng.choices(pool.frames, k=count)
    chance = rng.random()
    stream = b"".join(frames) if chance < 0.05 else mutated(rng, frames)
    flags = {"keep": rng.random() < 0.5, "small": rng.random() < 0.1}
    return Case("deliveries", stream, rng.randrange(1 << 32), flags)
