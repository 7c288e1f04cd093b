"""What direct gets bring: `fetch.directget`, `fetch.decoding.replies` and the rows made of it."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, Final

import pyarrow as pa

from pyspark_jetstream.fetch.decoding.replies import Columns
from pyspark_jetstream.fetch.decoding.rows import RowBuilder, arrow_schema
from pyspark_jetstream.fetch.gets import Ending, ForeignAnswerError, Gets

from ..kits.messages import INBOX, SID
from . import reference
from .cases import TYPED, Case, Fault, same
from .feed import Feed, counted
from .material import BETWEEN, STREAM, run
from .mutations import mutated

_BINARY: Final = pa.binary()
_NEVER: Final = 1e18


def batch_of(rows: list[reference.Row], times: list[Any]) -> pa.RecordBatch | None:
    """The rows as Spark gets them; None where a subject is no text."""
    headers = [reference.stored_headers(row.stored) for row in rows]
    try:
        subjects = [row.subject.decode() for row in rows]
    except UnicodeDecodeError:
        return None
    return pa.record_batch(
        [
            subjects,
            pa.array([row.data for row in rows], _BINARY),
            pa.array([row.sequence for row in rows], pa.int64()),
            pa.array(times, pa.timestamp("us", "UTC")),
            pa.array([3] * len(rows), pa.int32()),
            ["S"] * len(rows),
            pa.array(headers, arrow_schema(True)[6].type),
        ],
        schema=arrow_schema(True),
    )


class Expected:
    """Rows by the reference, as columns."""

    def __init__(self, rows: list[reference.Row]) -> None:
        self.columns = Columns(
            pa.array([row.subject for row in rows], _BINARY),
            pa.array([row.sequence for row in rows], pa.int64()),
            pa.array([row.time for row in rows], _BINARY),
            pa.array([row.data for row in rows], _BINARY),
            pa.array([row.stored for row in rows], _BINARY),
        )
        times = [reference.micros(row.time) for row in rows]
        self.batch: pa.RecordBatch | None = None
        """None where a subject is no text, or a time none that a row can hold."""
        if all(time is not None and 1678 <= time.year <= 2261 for time in times):
            self.batch = batch_of(rows, times)


class _Client:
    """What direct gets need of a client."""

    def __init__(self) -> None:
        self.connection = Feed()
        self.options = SimpleNamespace(request_timeout_s=1.0, api_prefix="$JS.API")


def _heard(ending: Ending) -> None:
    """Reads of an end what those who gather read of it, also where it brought no message."""
    assert min(ending.pending, ending.last) >= 0


def _taken(case: Case, after: int, keep: bool) -> tuple[Columns | None, int, int]:
    """What the package makes of an answer; its calls of `next_frame`, and the pieces."""
    client = _Client()
    gets: Any = Gets(client, STREAM.decode())  # type: ignore[arg-type]
    with counted() as work:
        client.connection.socket.say(case.chunks())
        gets.ask({"seq": after + 1})
        _heard(gets.gather(_NEVER))
        messages = gets.take()
    columns = messages.columns(keep) if messages is not None else None
    return columns, work.frames, client.connection.socket.taken


def _compare(columns: Columns | None, expected: Expected, keep: bool) -> None:
    rows = len(expected.columns.sequences)
    same("rows", 0 if columns is None else len(columns.sequences), rows)
    if columns is None:
        return
    for name, ours, theirs in zip(Columns._fields, columns, expected.columns, strict=True):
        if ours is not None and not ours.equals(theirs):
            _differ(name, ours, theirs)
    builder = RowBuilder("S", keep, partition=3)
    try:
        batch = builder.batch(columns, -1, reference.MOST)
    except TYPED as error:
        if expected.batch is not None:
            raise Fault(f"rows that can be are an error: {error}") from error
        return
    if expected.batch is None:
        raise Fault("rows of subjects or times that cannot be")
    for name, ours in zip(batch.schema.names, batch.columns, strict=True):
        if not ours.equals(expected.batch.column(name)):
            _differ(name, ours, expected.batch.column(name))


def _differ(name: str, ours: pa.Array, theirs: pa.Array) -> None:
    for row, (one, other) in enumerate(zip(ours.to_pylist(), theirs.to_pylist(), strict=True)):
        same(f"{name} of row {row}", one, other)
    raise Fault(f"{name} differ in their types: {ours.type}, {theirs.type}")


def check(case: Case) -> int:
    """Against the reference; how many frames that is."""
    keep = case.flags.get("keep", True)
    theirs = reference.answer(case.stream, SID, STREAM, case.flags["after"])
    frames = len(reference.read(case.stream).frames)
    calls = pieces = 0
    try:
        columns, calls, pieces = _taken(case, case.flags["after"], keep)
    except (ForeignAnswerError, TYPED) as error:
        if theirs.why == "whole" and theirs.last and _is_plain(case.stream):
            raise Fault(f"a whole answer is an error: {type(error).__name__}: {error}") from error
        return frames + 1
    if theirs.why != "whole":
        count = 0 if columns is None else len(columns.sequences)
        raise Fault(f"{count} rows of what is {theirs.why}")
    _compare(columns, Expected(theirs.rows), keep)
    if calls > 2 * frames + 3 * pieces + 100:
        raise Fault(f"{calls} frames are looked for in {frames}, in {pieces} pieces")
    return frames


def _is_plain(stream: bytes) -> bool:
    """Whether all of ours is as a server sends it: what is not may be refused."""
    frames = [f for f in reference.read(stream).frames if f.sid == SID]
    if not all(reference.got(frame.headers) for frame in frames[:-1]):
        return False
    return all(reference.is_plain(stream, frame) and frame.subject == INBOX for frame in frames)


def case(rng: random.Random) -> Case:
    """An answer, with faults or without."""
    made = random.Random(rng.randrange(1 << 32))
    first = made.choice((1, 5, 10**6))
    after = made.choice((0, first - 1))
    count = made.choice((0, 1, 2, 5, 20, 60, 300))
    frames, end = run(made, made.random() < 0.3, first, count, after)
    frames.append(end)
    if made.random() < 0.1:
        frames.insert(rng.randrange(len(frames)), rng.choice(BETWEEN))
    stream = b"".join(frames) if made.random() < 0.3 else mutated(rng, frames)
    flags = {"keep": made.random() < 0.5, "after": after}
    return Case("replies", stream, rng.choice((0, rng.randrange(1 << 32))), flags)
