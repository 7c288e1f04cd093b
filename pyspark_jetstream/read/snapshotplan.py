"""
Snapshots: the ways to find one, its plan, and the meaning of gaps.

Rule 1: no I/O and no clock; the streams are asked in `snapshotplanner`, the messages fetched in
`snapshotread`.
Rule 2: a plan is a list of messages, by subject and sequence. Tasks deliver exactly these or
report them gone, so nothing that happens after the plan can put another value in their place.

A stream tells the last message of each subject at or below a sequence only as far as it still
holds it. What is no longer there cannot be seen; `past_is_gone` says for which subjects that may
matter.

Costs are µs a message or a subject, server and client together, measured on nats-server 2.15.1.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc

from ..fetch.decoding.rows import Texts
from ..fetch.planning import split_range
from ..subjects import readable

Index = Literal["names", "range"]

LISTING_PAGE: Final = 100_000
"""Subjects of one page of STREAM.INFO (jetstream_api.go, JSMaxSubjectDetails)."""

LISTED_COST: Final = 1.4
"""One subject, in each page of a listing: the server goes through all of them for every page."""

LOOKED_UP_COST: Final = 18.0
"""One subject by `multi_last`, 1,024 a request."""

LOOKED_UP_PAST_COST: Final = 150.0
"""Cost of the same at a sequence in the past, for a subject that changed since, in file storage."""

WALKED_COST: Final = 0.2
"""One message that memory storage goes back from that sequence to find the subject's last one."""

READ_COST: Final = 7.0
"""One message by an unfiltered batched direct get, reduced."""

NAMED: Final = 5_000_000
"""Messages of a plan up to which it names their subjects."""

_TASK_MESSAGES: Final = 50_000
_MOST_TASK_MESSAGES: Final = 1_000_000
_DENSE: Final = 1 / 3

PLANNED: Final = pa.schema([("subject", pa.string()), ("sequence", pa.int64())])
"""Schema of a plan; subjects are null where it does not name them."""

_PACKED: Final = pa.schema([("subject", pa.string()), ("step", pa.int64())])
"""Schema of a piece on its way: each sequence as how far it lies behind the one before it."""


def past_cost(subjects: int, in_memory: bool) -> float:
    """
    µs to look up one of `subjects` at a sequence in the past.

    Memory storage goes back message by message. So the subject's last message lies about as far
    back as there are subjects.
    """
    return max(LOOKED_UP_COST, WALKED_COST * subjects) if in_memory else LOOKED_UP_PAST_COST


def choose_index(
    subjects: int, messages: int, cost: float, longest_s: float | None = None
) -> Index:
    """
    Way to find the last message of each of `subjects` among `messages`.

    `names`: list them and look them up. `range`: read all and reduce, the cheaper the shallower
    the stream is, and without the listing's load on the server.

    Args:
        cost: µs to look up one of them.
        longest_s: seconds that a publish may wait for a page of the listing; None if nobody says.
    """
    page = LISTED_COST * subjects
    if longest_s is not None and page > 1e6 * longest_s:
        return "range"
    by_name = max(1, -(-subjects // LISTING_PAGE)) * page + cost * subjects
    return "names" if by_name < messages * READ_COST else "range"


def shards(names: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    """The names in groups of at most `size`."""
    for low in range(0, len(names), size):
        yield names[low : low + size]


# ── what is gone ─────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """Limits by which messages leave a stream, as far as they decide the meaning of a gap."""

    per_subject: int
    """Messages it keeps of a subject; 0 for any number."""
    by_limits: bool
    """Whether age, size or a time to live takes messages."""

    @classmethod
    def of(cls, config: dict[str, Any]) -> StreamLimits:
        """The limits that a stream's configuration sets."""
        limits = ("max_age", "max_msgs", "max_bytes", "allow_msg_ttl")
        return cls(
            per_subject=max(0, config.get("max_msgs_per_subject") or 0),
            by_limits=any((config.get(name) or 0) > 0 for name in limits),
        )


@dataclass(frozen=True, slots=True)
class LaterSubject:
    """A subject of which the stream holds only messages beyond the snapshot's sequence."""

    subject: str
    messages: int
    purged: bool
    """Whether the first of them is a purge or a marker: there was something before it."""


def past_is_gone(later: LaterSubject, limits: StreamLimits, asked_for_past: bool) -> bool:
    """
    Whether the subject may have had a value at the snapshot's sequence that is no longer there.

    Only to be asked where sequences at or below it are missing at all. With the end of the stream
    as the sequence (not `asked_for_past`) only what replaced the value since then matters; in the
    past nothing vouches for a subject but a limit it has not reached, where that is the only
    limit.
    """
    if later.purged or 0 < limits.per_subject <= later.messages:
        return True
    return asked_for_past and (limits.per_subject == 0 or limits.by_limits)


# ── plans ────────────────────────────────────────────────────────────────────────────────────


def plan_of(found: pa.Table, texts: Texts) -> pa.Table:
    """
    Rows of a table of `LastOfEach` at the pin, by sequence and with subjects as text; rows whose
    subject has none are left out.
    """
    there = found.filter(pc.is_valid(found["sequence"])).sort_by("sequence").combine_chunks()
    names, sequences = (
        column.chunk(0) if column.num_chunks else pa.array([], column.type)
        for column in there.columns[:2]
    )
    plan = pa.table([texts.of(names, sequences), sequences], schema=PLANNED)
    return plan.filter(pc.is_valid(plan["subject"])) if plan["subject"].null_count else plan


def later_subjects(found: Iterable[pa.Table]) -> Iterator[LaterSubject]:
    """The subjects in tables of `LastOfEach` that have messages beyond the pin only."""
    for table in found:
        later = table.filter(pc.is_null(table["sequence"])).to_pydict()
        for name, count, purged in zip(
            later["subject"], later["later"], later["purged"], strict=True
        ):
            yield LaterSubject(readable(name), count, purged)


def split(
    plan: Iterable[pa.Table], rows: int, tasks: int | None, maximum: int | None
) -> Iterator[pa.Table]:
    """
    The `rows` of a plan in contiguous pieces: at least `tasks`, none longer than `maximum` nor a
    million; without either, one for every 50,000 messages.
    """
    if tasks is None and maximum is None:
        maximum = _TASK_MESSAGES
    maximum = min(maximum or _MOST_TASK_MESSAGES, _MOST_TASK_MESSAGES)
    held = PLANNED.empty_table()
    tables = iter(plan)
    for low, high in split_range(0, rows, tasks or 1, maximum):
        parts = [held]
        while sum(part.num_rows for part in parts) < high - low:
            parts.append(next(tables))
        whole = pa.concat_tables(parts)
        held = whole.slice(high - low)
        yield whole.slice(0, high - low)


def is_dense(sequences: pa.ChunkedArray) -> bool:
    """Whether ascending sequences are fetched best by reading all that lies between them."""
    span: int = sequences[-1].as_py() - sequences[0].as_py() + 1
    return len(sequences) >= span * _DENSE


def pack(plan: pa.Table, named: bool = True) -> bytes:
    """
    A piece of a plan as it travels to its task: some 10 bytes a subject, or one if they are not
    named.
    """
    sequences = plan["sequence"].combine_chunks()
    steps = pc.coalesce(pc.pairwise_diff(sequences), sequences)
    names = plan["subject"] if named else pa.nulls(len(sequences), pa.string())
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, _PACKED) as writer:
        writer.write_table(pa.table([names, steps], schema=_PACKED))
    return zlib.compress(sink.getvalue().to_pybytes(), 1)


def unpack(packed: bytes) -> pa.Table:
    """The table that `pack` packed."""
    with pa.ipc.open_stream(zlib.decompress(packed)) as reader:
        plan = reader.read_all().combine_chunks()
    return pa.table([plan["subject"], pc.cumulative_sum(plan["step"])], schema=PLANNED)


def missing(plan: pa.Table, found: Iterable[pa.Array]) -> pa.Table:
    """The rows of the plan whose sequences are in none of the columns `found`."""
    there = pa.chunked_array(list(found), pa.int64())
    return plan.filter(pc.invert(pc.is_in(plan["sequence"], value_set=there.combine_chunks())))
