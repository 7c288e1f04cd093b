"""
A look at streams and consumers on the server, and at a checkpoint beside them.

Owns: what is asked, and in which order, so that a query that runs meanwhile is not accused: the
checkpoint before the streams, which by then end where it ends, or beyond. What the answers mean is
`findings`.

Without a stream and a checkpoint it looks at all that is Spark's on the server: consumers that a
query has made, their streams, and the ledger with the targets that it names. Nothing is changed on
the server, and no query is asked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any, Final

from ...client.connection import Client
from ...client.info import StreamInfo, consumer_info_of
from ...client.jetstream import JetStream
from ...errors import LedgerError, OffsetError, PermissionsError, StreamNotFoundError
from ...fetch.dataloss import replaced
from ...fetch.options import plain_read
from ...fetch.survey import Survey
from ...readstream.offsets import INITIAL, Offset, begins
from ...readstream.shared.claims import ClaimedOffset
from ...write.exactlyonce.ledger import BUCKET, STREAM
from ...write.exactlyonce.records import Committed, committed_of
from ..batches import Batches, read_batches
from ..files import Files
from . import findings
from .findings import Report, Seen

_WRITES: Final = 1_000
"""Queries of the ledger that are looked up."""


Source = tuple[str, Offset | ClaimedOffset, Offset | None]
"""
Name and last planned offset of one of our sources; the committed one, in its layout, if both are
ranges.
"""


class Inspector:
    """
    Looks at what there is now.

    Args:
        streams: the name of a stream, or with `*` of several.
        checkpoint: the files of a query's.
    """

    def __init__(
        self, client: Client, streams: str | None = None, checkpoint: Files | None = None
    ) -> None:
        self._js, self._options = JetStream(client), client.options
        self._survey = Survey(client, plain_read(client.options, ""))
        self._streams, self._files = streams, checkpoint
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
        batches = read_batches(self._files) if self._files is not None else None
        sources = list(_sources(report, batches)) if batches is not None else []
        writes = self._writes(report, batches)
        targets = {name for _, last in writes for name in last.streams}
        seen = self._seen(report, sources, targets)
        shown = {STREAM, *targets, *(row["stream"] for row in report.consumers)}
        for name, info in seen.streams.items():
            if not self._everything or name in shown:
                findings.add_stream(report, info, self._options.command)
        for name, planned, committed in sources:
            if isinstance(planned, ClaimedOffset):
                findings.add_shared(report, name, planned, seen)
            elif committed is not None:
                for each in planned.layout:
                    findings.add_position(report, name, each, (committed, planned), seen)
        if batches is not None and self._files is not None:
            report.checkpoint = {
                "path": self._files.location, "query": batches.query,
                "planned": batches.planned, "committed": batches.committed,
            }  # fmt: skip
        for write, last in writes:
            words = f"nats stream purge {STREAM} --subject='$KV.{BUCKET}.{write}.>'"
            forget, is_asked = self._options.command(words), batches is not None
            findings.add_write(report, write, last, seen.streams, forget, is_asked)
        findings.add_idle(report)
        return report

    def _seen(self, report: Report, sources: Sequence[Source], targets: set[str]) -> Seen:
        """Streams that are asked for, of the sources, and targets, with consumers of queries."""
        asked = {name for _, planned, _ in sources for name in planned.streams}
        if self._everything or "*" in (self._streams or ""):
            asked |= {n for n in self._js.stream_names() if fnmatchcase(n, self._streams or "*")}
        elif self._streams is not None:
            self._survey.info_of(self._streams)  # or raises, with the nearest name
            asked |= {self._streams}
        names = sorted(asked | targets, key=_natural)
        found = zip(names, self._js.stream_infos_there(names), strict=True)
        streams = {name: info for name, info in found if info is not None}
        marks = {
            name: mark
            for _, planned, _ in sources
            if isinstance(planned, Offset)
            for name, mark in planned.marks.items()
            if name in streams
        }
        seen = Seen(streams, {}, replaced(self._js, marks))
        for info in [info for name, info in streams.items() if name in asked]:
            with suppress(StreamNotFoundError):
                self._add_consumers(report, seen, info)
        return seen

    def _add_consumers(self, report: Report, seen: Seen, info: StreamInfo) -> None:
        """The consumers of a stream that are queries', and of one that is asked for all groups'."""
        answers, silent = self._js.consumer_list(info.name)
        for name in silent:
            seen.consumers[info.name, name] = None
            findings.add_silent(report, info.name, name)
        for each in sorted(answers, key=lambda each: _natural(each["name"])):
            seen.consumers[info.name, each["name"]] = consumer_info_of(each)
            row = findings.consumer_row(info.name, each)
            if row["query"] or (row["policy"] and not self._everything):
                command, retention = self._options.command, info.retention
                findings.add_consumer(report, info.name, each, command, retention)

    def _writes(self, report: Report, batches: Batches | None) -> list[tuple[str, Committed]]:
        """Last batches in the ledger: of the checkpoint's query, or of all."""
        if batches is None and not self._everything:
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


def _sources(report: Report, batches: Batches) -> Iterator[Source]:
    """The sources that are ours, with their last offsets."""
    for name, value in batches.planned_offsets.items():
        if not isinstance(value, dict) or not {"version", "consumer", "streams"} <= value.keys():
            continue  # another source's, or no batch was planned
        try:
            if "claims" in value:
                yield name, ClaimedOffset.from_json(value), None
            else:
                planned = Offset.from_json(value)
                done = batches.committed_offsets.get(name, INITIAL)
                yield name, planned, begins(done, planned)
        except OffsetError as error:
            report.problems.append(f"source {name}: {error}")


def _natural(name: str) -> tuple[Any, ...]:
    """The key of an order in which -2 stands before -10."""
    parts = re.split(r"(\d+)", name)
    return tuple(int(part) if at % 2 else part for at, part in enumerate(parts))
