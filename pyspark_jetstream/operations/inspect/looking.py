"""
A look at streams and consumers on the server, and at a checkpoint beside them.

Owns: what is asked, and in which order, so that a query that runs meanwhile is not accused: the
consumers before the checkpoint (which then stands where they stand, or beyond), the checkpoint
before the streams, which by then end where it ends, or beyond. What the answers mean is `findings`.

Without a stream and a checkpoint it looks at all that is Spark's on the server: consumers that a
query has made, their streams, the ledger with the targets that it names, and streams that
`partition` has made. Nothing is changed on the server, and no query is asked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any, Final

from ...client.connection import Client
from ...client.info import ConsumerInfo, StreamInfo, consumer_info_of
from ...client.jetstream import JetStream
from ...errors import LedgerError, OffsetError, PermissionsError, StreamNotFoundError
from ...fetch.dataloss import replaced
from ...fetch.layout import SubjectPartition
from ...fetch.options import plain_read
from ...fetch.owner import Owner
from ...fetch.survey import Span, Survey
from ...readstream.offsets import Offset, begins, is_initial
from ...readstream.shared.claims import ClaimedOffset
from ...write.exactlyonce.ledger import BUCKET, STREAM
from ...write.exactlyonce.records import Committed, committed_of
from ..batches import Batches, read_batches
from ..files import Files
from ..partition.plan import MARK
from . import findings
from .findings import Report, Seen, is_ours, read_up_to

Listed = dict[str, tuple[list[dict[str, Any]], list[str]]]
"""By stream the answers for its consumers, and the names of those without a leader."""

_TRIES: Final = 3

_WRITES: Final = 1_000
"""Queries of the ledger that are looked up."""


@dataclass(frozen=True, slots=True)
class _Source:
    """One of our sources of a checkpoint, as far as its last offset can be read."""

    name: str
    committed: Offset | None
    planned: Offset | ClaimedOffset | None
    """None: no batch has begun, or `error`."""
    error: str = ""

    @property
    def known(self) -> tuple[tuple[str, ...], str]:
        """Its streams, and the prefix of its consumers."""
        return (tuple(self.planned.streams), self.planned.consumer) if self.planned else ((), "")


class Inspector:
    """
    Looks at what there is now.

    Args:
        streams: the name of a stream, or with `*` of several.
        consumer: one consumer, or the prefix of a query's.
        checkpoint: the files of a query's.
    """

    def __init__(
        self, client: Client, streams: str | None = None, consumer: str | None = None,
        checkpoint: Files | None = None,
    ) -> None:  # fmt: skip
        self._js, self._options = JetStream(client), client.options
        self._survey = Survey(client, plain_read(client.options, ""))
        self._streams, self._consumer, self._files = streams, consumer, checkpoint
        self._everything = streams is None and checkpoint is None

    def look(self) -> Report:
        """
        What there is, and what is wrong with it.

        Raises:
            StreamNotFoundError: The stream is missing.
            OffsetError: The checkpoint's files are none that Spark writes.
            CheckpointError: They cannot be read.
            JetStreamError: The server cannot be asked.
        """
        report = Report(datetime.now(UTC).isoformat(timespec="seconds"), self._options.where)
        batches = self._read()
        writes = self._writes(report, batches)
        for _ in range(_TRIES):
            sources = list(_sources(batches))
            infos = self._infos(sources)
            listed = self._listed(infos)
            batches = self._read()
            before, sources = sources, list(_sources(batches))
            if [each.known for each in before] == [each.known for each in sources]:
                break  # else its first batch was planned meanwhile
        seen = self._seen(sources, infos, listed, writes)
        prefixes = {self._consumer or "", *(each.known[1] for each in sources)} - {""}
        self._add_consumers(report, seen, listed, prefixes)
        targets = {name for _, last in writes for name in last.streams}
        shown = {row["stream"] for row in report.consumers} | targets
        for name, info in seen.streams.items():
            if not self._everything or name in shown or _is_sparks(info):
                findings.add_stream(report, info, self._options.command)
        self._add_checkpoint(report, batches, sources, seen)
        for write, last in writes:
            words = f"nats stream purge {STREAM} --subject='$KV.{BUCKET}.{write}.>'"
            forget = self._options.command(words)
            findings.add_write(report, write, last, seen, forget, is_asked=self._files is not None)
        findings.add_idle(report, self._options.command)
        return report

    # ── streams, consumers, ledger ───────────────────────────────────────────────────────────

    def _infos(self, sources: Sequence[_Source]) -> dict[str, StreamInfo]:
        """The streams that are asked for, and those of the sources, as far as they are there."""
        of_sources = names = [name for source in sources for name in source.known[0]]
        if self._everything or "*" in (self._streams or ""):
            names = names + sorted(self._js.stream_names(), key=_natural)
        elif self._streams is not None:
            self._survey.info_of(self._streams)  # or raises what is alike
            names = [*names, self._streams]
        pattern = self._streams or "*"
        wanted = [n for n in dict.fromkeys(names) if n in of_sources or fnmatchcase(n, pattern)]
        found = zip(wanted, self._js.stream_infos_there(wanted), strict=True)
        return {name: info for name, info in found if info is not None}

    def _listed(self, infos: Mapping[str, StreamInfo]) -> Listed:
        listed = {}
        for name in infos:
            with suppress(StreamNotFoundError):
                listed[name] = self._js.consumer_list(name)
        return listed

    def _seen(
        self, sources: Sequence[_Source], infos: Mapping[str, StreamInfo],
        listed: Listed, writes: Sequence[tuple[str, Committed]],
    ) -> Seen:  # fmt: skip
        targets = {name for _, last in writes for name in last.streams}
        names = sorted({*infos, *targets}, key=_natural)
        there = zip(names, self._js.stream_infos_there(names), strict=True)
        streams = {name: info for name, info in there if info is not None}
        marks = {
            name: mark
            for source in sources
            if isinstance(source.planned, Offset)
            for name, mark in source.planned.marks.items()
            if name in streams and streams[name].created == mark.created
        }
        consumers: dict[tuple[str, str], ConsumerInfo | None] = {}
        for stream, (answers, silent) in listed.items():
            consumers |= {(stream, name): None for name in silent}
            consumers |= {(stream, one.name): one for one in map(consumer_info_of, answers)}
        return Seen(self._options.command, streams, consumers, replaced(self._js, marks))

    def _add_consumers(
        self, report: Report, seen: Seen, listed: Listed, prefixes: set[str]
    ) -> None:
        """Those of the prefixes; else those of queries, and of one stream all of a group."""
        of_prefixes = re.compile(f"(?:{'|'.join(map(re.escape, prefixes))})(?:-[0-9]+)?")
        for stream, (answers, silent) in listed.items():
            rows = {str(each["name"]): each for each in answers}
            for name in sorted([*rows, *silent], key=_natural):
                config = rows.get(name, {}).get("config") or {}
                is_query = Owner.of(config) is not None or name in silent
                in_group = not self._everything and bool(config.get("priority_groups"))
                if not (of_prefixes.fullmatch(name) if prefixes else is_query or in_group):
                    continue
                if name in silent:
                    findings.add_silent(report, stream, name)
                else:
                    retention = seen.streams[stream].retention if stream in seen.streams else ""
                    findings.add_consumer(report, stream, rows[name], seen.command, retention)

    def _writes(self, report: Report, batches: Batches | None) -> list[tuple[str, Committed]]:
        """Last batches in the ledger: of the checkpoint's query, or of all."""
        if self._files is None and not self._everything:
            return []
        written = f"$KV.{BUCKET}.{batches.query if batches else '*'}.committed"
        try:
            _, keys = self._js.subject_counts(STREAM, [written])
            records = self._js.last_messages(STREAM, list(keys)[:_WRITES])
        except StreamNotFoundError:
            return []
        except PermissionsError as error:
            report.notes.append(f"what was written is not shown: {error}")
            return []
        found = []
        for record in records:
            with suppress(LedgerError):  # a stranger's
                if record is not None:
                    found.append((record.subject.split(".")[2], committed_of(record)))
        return found

    # ── the checkpoint ───────────────────────────────────────────────────────────────────────

    def _read(self) -> Batches | None:
        return read_batches(self._files) if self._files is not None else None

    def _add_checkpoint(
        self, report: Report, batches: Batches | None, sources: Sequence[_Source], seen: Seen
    ) -> None:
        if batches is None or self._files is None:
            return
        report.checkpoint = {
            "path": self._files.location,
            "query": batches.query,
            "planned": batches.planned,
            "committed": batches.committed,
            "other_sources": len(batches.planned_offsets) - len(sources),
        }
        for source in sources:
            planned = source.planned
            if source.error:
                report.problems.append(f"source {source.name}: {source.error}")
            elif isinstance(planned, Offset):
                partitions = _partitions(planned)
                if not partitions:
                    report.notes.append(f"source {source.name}: its offset names no partitions")
                behind = self._behind(source, planned, partitions, seen.streams)
                for each in partitions:
                    at, lag = source.committed, behind.get(each.index)
                    findings.add_position(report, source.name, each, at, planned, seen, lag)
            elif planned is not None:
                done = batches.planned == batches.committed
                for each in _claimed(planned, report, source.name):
                    findings.add_claims(report, source.name, each, planned, done, seen)

    def _behind(
        self, source: _Source, planned: Offset, partitions: Sequence[SubjectPartition],
        infos: Mapping[str, StreamInfo],
    ) -> dict[int, int | None]:  # fmt: skip
        """Messages behind the committed positions, by partition, as far as the server counts."""
        spans = {}
        for each in partitions:
            if (info := infos.get(each.stream)) is not None:
                done = read_up_to(source.committed, planned, each.index, each.stream)
                start = max(done, info.first_seq - 1)
                spans[each.index] = Span(each.stream, each.filter, start, info.last_seq)
        counts = self._survey.counts(list(spans.values()), infos)
        return dict(zip(spans, counts, strict=True))


def _sources(batches: Batches | None) -> Iterator[_Source]:
    """The sources that are ours, with their last offsets."""
    for name, value in (batches.planned_offsets if batches else {}).items():
        done: Any = batches.committed_offsets.get(name) if batches else None
        if not is_ours(value):
            continue
        try:
            if "initial" in value:
                yield _Source(name, None, None)
            elif "claims" in value:
                yield _Source(name, None, ClaimedOffset.from_json(value))
            else:
                planned = Offset.from_json(value)
                begun = done is not None and not is_initial(done)
                committed = Offset.from_json(done) if begun else None
                if committed is not None and committed.layout != planned.layout:
                    committed = begins(done, planned)
                yield _Source(name, committed, planned)
        except OffsetError as error:
            yield _Source(name, None, None, str(error))


def _partitions(planned: Offset) -> tuple[SubjectPartition, ...]:
    """The partitions of an offset; none where it does not say which these are."""
    if planned.layout is not None:
        return planned.layout.partitions
    (stream, *others) = planned.streams
    whole = not others and len(planned.sequences) == 1
    return (SubjectPartition(0, stream),) if whole else ()


def _claimed(claims: ClaimedOffset, report: Report, source: str) -> Iterator[SubjectPartition]:
    """The partitions of shared consumers: of one stream, or of streams that end in a number."""
    streams = sorted(claims.streams, key=_natural)
    if len(streams) not in (1, claims.partitions):
        report.notes.append(f"source {source}: which stream is which partition cannot be told")
        return
    for index in range(claims.partitions):
        yield SubjectPartition(index, streams[index if len(streams) > 1 else 0])


def _is_sparks(info: StreamInfo) -> bool:
    """Whether a stream is the ledger, or one that `partition` has made."""
    metadata = info.config.get("metadata") or {}
    return info.name == STREAM or any(key.startswith(MARK) for key in metadata)


def _natural(name: str) -> tuple[Any, ...]:
    """The key of an order in which -2 stands before -10."""
    parts = re.split(r"(\d+)", name)
    return tuple(int(part) if at % 2 else part for at, part in enumerate(parts))
