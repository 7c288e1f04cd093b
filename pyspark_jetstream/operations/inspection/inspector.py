"""
A look at streams, partitions and consumers on the server, and at a checkpoint beside them.

Owns: what is asked, and in which order, so that a query that runs meanwhile is not accused: the
consumers before the checkpoint (which then stands where they stand, or beyond), the checkpoint
before the streams, which by then end where it ends, or beyond. What the answers mean is `findings`
and `leases`.

Without options and checkpoint it looks at all that is Spark's on the server: consumers that a query
has made, their streams, streams that `partition` has made, and the buckets of ledger and standbys.

Nothing is changed on the server. Limits: offsets of version 1 do not say their layout. Where it is
not given, the lag of partitions of one stream is None until the query's next batch; one partition,
or a stream a partition, is taken to read all messages.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from ...client.connection import Client
from ...client.info import (
    ConsumerInfo,
    StoredMessage,
    StreamInfo,
    consumer_info_of,
)
from ...client.jetstream import JetStream
from ...errors import (
    LedgerError,
    OffsetError,
    PermissionsError,
    StreamNotFoundError,
)
from ...fetch.dataloss import replaced
from ...fetch.layout import Layout, SubjectPartition, resolve_layout
from ...fetch.options import StreamOptions, plain_read
from ...fetch.survey import Span, Survey
from ...readstream.offsets import Offset, begins, is_initial
from ...readstream.shared.claims import ClaimedOffset
from ...readstream.standby import BUCKET
from ...write.exactlyonce.ledger import BUCKET as LEDGER
from ...write.exactlyonce.ledger import STREAM as LEDGER_STREAM
from ...write.exactlyonce.records import committed_of
from ..partition.plan import MARK
from .checkpoints import Checkpoint, Directory, read_checkpoint
from .findings import (
    CheckpointState,
    ConsumerState,
    Expected,
    Inspection,
    PartitionState,
    ServerState,
    SourceState,
    claim_state,
    consumer_state,
    is_ours,
    met_by,
    missing,
    position_state,
    read_up_to,
    since,
    stream_state,
    unread,
)
from .leases import LeaseState, lease_states, recorded, wanted_keys

_TRIES: Final = 3
_SILENCE: Final = timedelta(seconds=150)
"""Time after which a sharing query that was not heard does not run; else it is each minute."""

_QUERIES: Final = 1_000
"""Queries whose targets are looked up in the ledger."""

_COMMITTED: Final = f"$KV.{LEDGER}.{{}}.committed"

_BUCKETS: Final = (f"KV_{BUCKET}", LEDGER_STREAM)


@dataclass(frozen=True, slots=True)
class _Source:
    """One of our sources, as far as its last offset can be read."""

    name: str
    committed: Offset | None
    planned: Offset | ClaimedOffset | None
    """None: no batch has begun, or `error`."""
    error: str = ""

    @property
    def streams(self) -> tuple[str, ...]:
        return tuple(self.planned.streams) if self.planned is not None else ()

    @property
    def consumer(self) -> str:
        return self.planned.consumer if self.planned is not None else ""


class Inspector:
    """Looks again and again; from the second time on with rates."""

    def __init__(
        self,
        client: Client,
        options: StreamOptions | None = None,
        consumer: str | None = None,
        checkpoint: Directory | None = None,
        expected: Expected = "",
    ) -> None:
        self._client = client
        self._js = JetStream(client)
        self._command = client.options.command
        self._options = options
        self._survey = Survey(client, options or plain_read(client.options, ""))
        self._consumer = consumer
        self._files = checkpoint
        self._expected = expected
        self._everything = options is None and checkpoint is None
        self._before: tuple[float, Inspection] | None = None
        """Time and findings of the last look: by these rates are counted."""
        self._recorded: dict[str, Offset] = {}
        """Positions of the queries of a pair, by the prefix of their consumers."""
        self._hidden: tuple[str, ...] = ()
        """Reasons not to look at leases: what is forbidden is not asked again and again."""

    def look(self) -> Inspection:
        """
        Inspection of what there is now.

        Raises:
            StreamNotFoundError: A stream of the options is missing.
            OptionError: The options contradict a stream's configuration.
            OffsetError: The checkpoint's files are none that Spark writes.
            CheckpointError: They cannot be read.
            JetStreamError: The server cannot be asked.
        """
        of_options = self._options_streams()
        checkpoint = self._read()
        sources = _sources(checkpoint)
        records = self._records() if self._everything else []
        for _ in range(_TRIES):
            known = [(source.streams, source.consumer) for source in sources]
            of_sources = (name for streams, _ in known for name in streams)
            names = every = list(dict.fromkeys([*of_options, *of_sources]))
            if self._everything:
                names = every = sorted(self._js.stream_names(), key=_natural)
            infos = self._infos(names, of_options)
            consumers, answered = self._consumers(infos, sources)
            if self._everything:
                used = {consumer.stream for consumer in consumers} | _targets(records)
                names = [name for name, of in infos.items() if name in used or _is_sparks(of)]
            checkpoint = self._read()
            sources = _sources(checkpoint)
            if known == [(source.streams, source.consumer) for source in sources]:
                break  # else its first batch was planned meanwhile
        infos = self._infos(names, of_options)
        leases, notes = self._leases(every, self._prefixes(sources), consumers)
        pairs = [self._of_pair(source) for source in sources]
        notes += tuple(
            f"source {was.name}: another query of the pair has read on. The lease says up to where,"
            " and all is judged by that, not by this checkpoint"
            for was, now in zip(sources, pairs, strict=True)
            if was is not now
        )
        sources = pairs
        layout = self._layout(infos)
        streams = {name: stream_state(info, self._command) for name, info in infos.items()}
        server = ServerState(infos, answered, self._outgrown(sources, infos))
        absent = missing(consumers, leases, self._expected) if self._expected else []
        if not sources:
            leases = tuple(
                met_by(lease, self._recorded.get(lease.consumer), server) for lease in leases
            )
        inspection = Inspection(
            time=datetime.now(UTC).isoformat(timespec="seconds"),
            server=self._client.options.where,
            streams=tuple(streams.values()),
            partitions=self._partitions(layout, infos),
            consumers=consumers,
            checkpoint=None
            if checkpoint is None
            else CheckpointState(
                checkpoint.path,
                checkpoint.query,
                checkpoint.planned,
                checkpoint.committed,
                tuple(
                    self._source(source, checkpoint, layout, infos, server) for source in sources
                ),
                others=len(checkpoint.planned_offsets) - len(sources),
            ),
            leases=leases,
            notes=(
                *notes,
                *([] if absent else unread(consumers, leases)),
            ),  # fmt: skip
            missing=tuple(absent),
        )
        before, self._before = self._before, (time.monotonic(), inspection)
        if before is None:
            return inspection
        at_s, found = before
        elapsed_s = max(0.001, self._before[0] - at_s)
        return since(inspection, found, elapsed_s, self._read_since(found, inspection, infos))

    # ── streams and consumers ────────────────────────────────────────────────────────────────

    def _options_streams(self) -> tuple[str, ...]:
        if self._options is None:
            return ()
        if "{partition}" in self._options.stream:
            return self._survey.layout.streams
        return (self._options.stream,)

    def _records(self, query: str | None = None) -> list[StoredMessage]:
        """Records in the ledger of the commits of a query, or of all."""
        try:
            _, keys = self._js.subject_counts(LEDGER_STREAM, [_COMMITTED.format(query or "*")])
            records = self._js.last_messages(LEDGER_STREAM, list(keys)[:_QUERIES])
        except (PermissionsError, StreamNotFoundError):
            return []
        return [record for record in records if record is not None]

    def _layout(self, infos: Mapping[str, StreamInfo]) -> Layout | None:
        if self._options is None:
            return None
        return resolve_layout(self._options, {name: info.config for name, info in infos.items()})

    def _infos(self, names: Sequence[str], needed: Sequence[str]) -> dict[str, StreamInfo]:
        infos = dict(zip(names, self._js.stream_infos_there(list(names)), strict=True))
        for name in needed:
            infos[name] = infos[name] or self._survey.info_of(name)  # or raises what is alike
        return {name: info for name, info in infos.items() if info is not None}

    def _outgrown(
        self, sources: Sequence[_Source], infos: Mapping[str, StreamInfo]
    ) -> frozenset[str]:
        """The streams in which another message stands than when a checkpoint was written."""
        marks = {
            name: mark
            for source in sources
            if isinstance(source.planned, Offset)
            for name, mark in source.planned.marks.items()
            if name in infos and infos[name].created == mark.created
        }
        return frozenset(replaced(self._js, marks))

    def _consumers(
        self, infos: Mapping[str, StreamInfo], sources: Sequence[_Source]
    ) -> tuple[tuple[ConsumerState, ...], dict[tuple[str, str], ConsumerInfo | None]]:
        """
        Consumers of the prefixes and, of the same queries, their attempts' own; else those of
        Spark's, where all is looked at, or those that have a priority group. And the answers for
        all that there are; None for one of which no leader answers.
        """
        answered: dict[tuple[str, str], ConsumerInfo | None] = {}
        prefixes = self._prefixes(sources)
        any_of = "|".join(map(re.escape, prefixes))
        wanted = re.compile(f"(?:{any_of})(?:-[0-9]+)?")
        consumers: list[ConsumerState] = []

        def is_wanted(state: ConsumerState) -> bool:
            if prefixes:
                return wanted.fullmatch(state.name) is not None
            named = state.is_sparks if self._everything else state.pin.policy
            return bool(named or state.problems)

        for stream, of in infos.items():
            try:
                answers, silent = self._js.consumer_list(stream)
            except StreamNotFoundError:
                continue
            answered |= {(stream, name): None for name in silent}
            answered |= {(stream, one.name): one for one in map(consumer_info_of, answers)}
            states = [consumer_state(stream, each, self._command, of.retention) for each in answers]
            problem = ("no leader answers",)
            states += [ConsumerState(stream, name, problems=problem) for name in silent]
            named = [state for state in states if is_wanted(state)]
            queries = {state.owner.query for state in named} - {""}
            consumers += named
            if prefixes:
                consumers += [each for each in states if each.own and each.owner.query in queries]
        ordered = sorted(
            consumers,
            key=lambda each: (each.stream, _natural(each.name)),
        )
        return tuple(ordered), answered

    def _prefixes(self, sources: Sequence[_Source]) -> list[str]:
        """Prefixes of the consumers' names, as far as known."""
        known = {self._consumer or "", *(source.consumer for source in sources)}
        return sorted(known - {""})

    def _leases(
        self, streams: Sequence[str], prefixes: Sequence[str], consumers: Sequence[ConsumerState]
    ) -> tuple[tuple[LeaseState, ...], tuple[str, ...]]:
        """The leases of standbys; why they could not be looked at."""
        if self._hidden:
            return (), self._hidden
        bucket, prefix = f"KV_{BUCKET}", f"$KV.{BUCKET}."
        try:
            _, there_are = self._js.subject_counts(bucket, [f"{prefix}>"])
            keys = wanted_keys((s.removeprefix(prefix) for s in there_are), streams, prefixes)
            messages = self._js.last_messages(bucket, [f"{prefix}{key}" for key in keys])
            there = {key: each for key, each in zip(keys, messages, strict=True) if each}
            self._recorded = recorded(there)
            alone = {
                (each.name.rpartition("-")[0], each.owner.query)
                for each in consumers
                if each.owner.runs and not each.owner.standby
            }
            found = lease_states(there, self._js.stream_info(bucket).now, self._command, alone)
            return tuple(s for s in found if not s.streams or {*s.streams} & {*streams}), ()
        except StreamNotFoundError:
            return (), ()
        except PermissionsError as error:
            self._hidden = (f"leases of standbys are not shown: {error}",)
            return (), self._hidden

    def _of_pair(self, source: _Source) -> _Source:
        """The source where its lease stands, if that is beyond this checkpoint."""
        planned, lease = source.planned, self._recorded.get(source.consumer)
        if not isinstance(planned, Offset) or lease is None:
            return source
        is_alike = (lease.streams, lease.layout) == (planned.streams, planned.layout)
        ends = zip(lease.sequences, planned.sequences, strict=False)
        if not is_alike or all(theirs <= ours for theirs, ours in ends):
            return source
        return replace(source, committed=lease, planned=lease)

    def _partitions(
        self, layout: Layout | None, infos: Mapping[str, StreamInfo]
    ) -> tuple[PartitionState, ...]:
        if layout is None:
            return ()
        filtered = [partition for partition in layout if partition.filter is not None]
        known: dict[int, tuple[int | None, int]] = {}
        if filtered:  # all of one stream
            info = infos[filtered[0].stream]
            queries = [(info.name, {"last_by_subj": each.filter}) for each in filtered]
            lasts = self._js.messages_of(queries)
            spans = [Span(each.stream, each.filter, 0, info.last_seq) for each in filtered]
            counts = self._survey.counts(spans, infos)
            for partition, count, last in zip(filtered, counts, lasts, strict=True):
                known[partition.index] = count, last.sequence if last is not None else 0
        return tuple(
            PartitionState(
                each.index,
                each.stream,
                each.filter,
                *known.get(each.index, (infos[each.stream].messages, infos[each.stream].last_seq)),
            )
            for each in layout
        )

    # ── the checkpoint ───────────────────────────────────────────────────────────────────────

    def _read(self) -> Checkpoint | None:
        return read_checkpoint(self._files) if self._files is not None else None

    def _source(
        self,
        source: _Source,
        checkpoint: Checkpoint,
        layout: Layout | None,
        infos: Mapping[str, StreamInfo],
        server: ServerState,
    ) -> SourceState:
        planned = source.planned
        if planned is None:
            return SourceState(source.name, "", problems=(source.error,) if source.error else ())
        n = len(planned.sequences) if isinstance(planned, Offset) else planned.partitions
        partitions, known, problems = self._places(planned, n, layout)
        common: dict[str, Any] = {
            "source": source.name,
            "consumer": planned.consumer,
            "problems": tuple(problems),
        }
        if isinstance(planned, Offset):
            lags = self._lags(source, planned, partitions, infos) if known else {}
            positions = tuple(
                position_state(each, source.committed, planned, server, lags.get(each.index))
                for each in partitions
            )
            return SourceState(**common, positions=positions)
        done = checkpoint.planned == checkpoint.committed
        claims = tuple(
            claim_state(partition.index, partition.stream, planned, done, server)
            for partition in partitions
        )
        return SourceState(**common, policy=planned.policy, serial=planned.serial, claims=claims)

    def _places(
        self, planned: Offset | ClaimedOffset, n: int, layout: Layout | None
    ) -> tuple[Sequence[SubjectPartition], bool, list[str]]:
        """The partitions of a source, and whether their filters are known; problems."""
        if isinstance(planned, Offset) and planned.layout is not None:
            return planned.layout.partitions, True, []
        problems = []
        if layout is not None and set(layout.streams) & set(planned.streams):
            fits = set(layout.streams) == set(planned.streams)
            if fits and len(layout) == n:
                return layout.partitions, True, []
            if len(layout) > 1 or len(planned.streams) > 1:
                problems.append(
                    f"N differs: the checkpoint has {n} partitions, the stream's layout"
                    f" {len(layout)}"
                )
        names = _by_index(tuple(planned.streams), n)
        if not names:
            problems.append(
                f"which stream is which partition? give --stream with {{partition}} for"
                f" {', '.join(sorted(planned.streams))}"
            )
        places = [SubjectPartition(index, stream) for index, stream in enumerate(names)]
        return places, len(set(names)) == n, problems

    def _lags(
        self,
        source: _Source,
        planned: Offset,
        partitions: Sequence[SubjectPartition],
        infos: Mapping[str, StreamInfo],
    ) -> dict[int, int]:
        """Messages behind the committed positions, by partition."""
        spans = {}
        for partition in partitions:
            info = infos.get(partition.stream)
            if info is not None:
                done = read_up_to(source.committed, planned, partition.index, partition.stream)
                start = max(done, info.first_seq - 1)
                spans[partition.index] = Span(
                    partition.stream, partition.filter, start, info.last_seq
                )
        return self._counted(spans, infos)

    def _counted(
        self, spans: Mapping[Any, Span], infos: Mapping[str, StreamInfo]
    ) -> dict[Any, int]:
        """Messages of each span, where the server can tell; 0 of one that is empty."""
        asked = {key: span for key, span in spans.items() if span.start < span.end}
        counts = self._survey.counts(list(asked.values()), infos)
        totals = dict.fromkeys(spans, 0) | dict(zip(asked, counts, strict=True))
        return {key: count for key, count in totals.items() if count is not None}

    def _read_since(
        self, before: Inspection, now: Inspection, infos: Mapping[str, StreamInfo]
    ) -> dict[tuple[str, int], int]:
        """Messages between two committed positions, by source and partition."""
        if before.checkpoint is None or now.checkpoint is None:
            return {}
        stood = {
            (source.source, position.index): position.committed
            for source in before.checkpoint.sources
            for position in source.positions
        }
        spans = {}
        for source in now.checkpoint.sources:
            for position in source.positions:
                was = stood.get((source.source, position.index))
                if was is not None and position.lag is not None and was <= position.committed:
                    span = Span(position.stream, position.filter, was, position.committed)
                    spans[source.source, position.index] = span
        return self._counted(spans, infos)


def _sources(checkpoint: Checkpoint | None) -> list[_Source]:
    """The sources that are ours, with their last offsets."""
    if checkpoint is None:
        return []
    sources = []
    for name, value in checkpoint.planned_offsets.items():
        if not is_ours(value):
            continue
        done: Any = checkpoint.committed_offsets.get(name)
        try:
            if "initial" in value:
                sources.append(_Source(name, None, None))
            elif "claims" in value:
                sources.append(_Source(name, None, ClaimedOffset.from_json(value)))
            else:
                begun = done is not None and not is_initial(done)
                planned = Offset.from_json(value)
                committed = Offset.from_json(done) if begun else None
                if committed is not None and committed.layout != planned.layout:
                    committed = begins(done, planned)
                sources.append(_Source(name, committed, planned))
        except OffsetError as error:
            sources.append(_Source(name, None, None, str(error)))
    return sources


def _targets(records: Sequence[StoredMessage]) -> set[str]:
    """The streams that queries write into with `exactlyOnce`, as the ledger notes them."""
    targets: set[str] = set()
    for record in records:
        with suppress(LedgerError):  # a stranger's
            targets |= committed_of(record).streams.keys()
    return targets


def _by_index(streams: Sequence[str], n: int) -> list[str]:
    """The stream of each partition; none where the names do not tell."""
    if len(streams) == 1:
        return list(streams) * n
    prefix = os.path.commonprefix(streams)
    suffix = os.path.commonprefix([name[len(prefix) :][::-1] for name in streams])[::-1]
    names = [f"{prefix}{index}{suffix}" for index in range(len(streams))]
    return names if set(names) == set(streams) and len(names) >= n else []


def _is_sparks(info: StreamInfo) -> bool:
    """Whether a stream is a bucket of ours, or one that `partition` has made."""
    metadata = info.config.get("metadata") or {}
    return info.name in _BUCKETS or any(key.startswith(MARK) for key in metadata)


def _number(consumer: str) -> int:
    """The partition that ends a consumer's name; -1 if none does."""
    end = consumer.rpartition("-")[2]
    return int(end) if re.fullmatch("[0-9]{1,9}", end) else -1


def _natural(name: str) -> tuple[Any, ...]:
    """The key of an order in which -2 stands before -10."""
    parts = re.split(r"(\d+)", name)
    return tuple(int(part) if at % 2 else part for at, part in enumerate(parts))
