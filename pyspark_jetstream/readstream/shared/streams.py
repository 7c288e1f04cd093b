"""
The streams and consumers of a sharing query as last seen, and proof that they are still those of
its batches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Final, TypeVar

from ...client.info import ConsumerInfo, Mark, StreamInfo
from ...errors import ReadError, StreamNotFoundError
from ...fetch.assumptions import Assumption, Change
from ...fetch.layout import Layout, SubjectPartition
from ...fetch.survey import ServerView, Survey
from ...values import EARLIEST, Starting
from ..driver import lasting
from ..options import SourceOptions
from .claimant import Claimant
from .claims import ClaimedOffset, SharedConsumer, shared_name
from .fence import newer

_LOOKS: Final = 5
"""Looks at several streams, while others are deleted amid each."""

T = TypeVar("T")


class SharedStreams:
    """
    The streams of one query, and their shared consumers.

    Several streams come and go, and their partitions with them.

    Args:
        infos: the streams by a first look.
        claimant: has no consumers yet.
        fits: told of the streams before consumers are made on some; it raises where one cannot be
            shared.
        lost: told of each loss: stream, partition, and what is gone. It raises where
            `failOnDataLoss` says so.
    """

    def __init__(
        self,
        options: SourceOptions,
        survey: Survey,
        infos: Mapping[str, StreamInfo],
        claimant: Claimant,
        fits: Callable[[Mapping[str, StreamInfo]], None],
        lost: Callable[[str, int, str], None],
    ) -> None:
        self.infos = infos
        """The streams, by name."""
        self.is_closed = False
        """Whether no more streams come: the run ends at what is there (`availableNow`)."""
        self.marks: Mapping[str, Mark] = {}
        """The streams as the last batch was planned by them, of this query or of another one."""
        self._back: dict[str, Mark] = {}
        """Streams that were found to be taken back, as they were then."""
        self._deleted: dict[str, str] = {}
        """Streams that went, as this run has seen: the creation time of each."""
        self._known: Mapping[str, str] | None = None
        """
        The streams whose consumers are joined, by creation time; before that those of the run
        before, and None where there was none.
        """
        self._has_joined = False
        self._options = options
        self._survey = survey
        self._claimant = claimant
        self._fits = fits
        self._lost = lost
        claimant.set_consumers(self._consumers())

    def __repr__(self) -> str:
        return f"<SharedStreams {', '.join(self.infos)}>"

    @property
    def created(self) -> dict[str, str]:
        """Creation time of each stream."""
        return {name: info.created for name, info in self.infos.items()}

    def has_claims_of(self, offset: ClaimedOffset, name: str) -> bool:
        """
        Whether a stream still holds, under its sequences, what a batch has claimed of it: it was
        neither made anew nor, as this run has seen, taken back since the batch was planned.
        """
        info = self.infos.get(name)
        if info is None or info.created != offset.streams.get(name):
            return False
        back, mark = self._back.get(name), offset.marks.get(name)
        return back is None or (mark is not None and (mark.seen_us or 0) >= (back.seen_us or 0))

    @property
    def forgotten(self) -> Mapping[str, object]:
        """
        The streams of which what was settled says nothing any more, each with what tells when: they
        were deleted, or taken back, as far as this run has seen.
        """
        return {**self._deleted, **self._back}

    @property
    def stores(self) -> dict[str, tuple[SharedConsumer, Mark | None]]:
        """
        By partition its consumer, and the mark at which its stream was found to be taken back: as
        long as both are the same a claim is of the message that was dealt.
        """
        return {c.partition: (c, self._back.get(c.stream)) for c in self._claimant.consumers}

    @property
    def partitions(self) -> dict[str, SubjectPartition]:
        """The partitions whose streams are there."""
        return dict(zip(self._survey.layout.names, self._survey.layout, strict=True))

    def remember(self, streams: Mapping[str, str]) -> None:
        """Notes the consumers of several streams of a batch, by creation time; some may be gone."""
        known = self._claimant.by_partition
        for name in streams.keys() - known.keys():
            known[name] = self._consumer(name, SubjectPartition(0, name), streams[name])

    def join(self, known: Mapping[str, str] | None) -> None:
        """
        Joins all consumers, and makes those that are missing.

        Args:
            known: the streams of an earlier run by their creation times; None where there was none.

        Raises:
            OptionError: A consumer cannot be shared in the way the options say.
        """
        self._known, self._has_joined = known, True
        self._deleted |= {n: made for n, made in (known or {}).items() if n not in self.infos}
        self._leave_out(name for name in self._came() if not self._may_join(name))
        try:
            self._join()
        except StreamNotFoundError:
            self.look_at_streams()  # of several one was deleted just now, and this joins the others

    def mark(self) -> Mapping[str, Mark]:
        """Marks the streams as they are now, for the batch that is planned by them."""
        self.marks = self._survey.marks(self.infos)
        return self.marks

    def look(self) -> ServerView[str]:
        """
        The streams and the consumers as they are now; those that came are joined.

        Raises:
            ConsumerNotFoundError: A consumer was deleted.
        """
        return self._amid_deletions(self._look)

    def look_at_streams(self) -> None:
        """Looks at the streams alone; the consumers of those that came are joined."""
        self._amid_deletions(lambda: self._take_in(self._survey.look({}).streams))

    def _look(self, looks: int = _LOOKS) -> ServerView[str]:
        asked_s = time.monotonic()
        asked = {c.partition: c for c in self._claimant.consumers}
        look = self._survey.look({p: (c.stream, c.name) for p, c in asked.items()})
        self._take_in(look.streams)
        infos = {
            index: info
            for index, info in look.consumers.items()
            if info is not None and self._claimant.by_partition[index] == asked[index]
        }
        self._claimant.note_clock(infos.values(), asked_s)
        for index in look.consumers.keys() - infos.keys():
            if asked[index] in self._claimant.consumers:
                self._survey.js.consumer_info(asked[index].stream, asked[index].name)  # raises, or
                if looks:  # it was away for a moment
                    return self._look(looks - 1)
                raise ReadError(
                    asked[index].stream,
                    asked[index].number,
                    f"consumer '{asked[index].name}' is there and gone, in turns; find out who"
                    " deletes and makes it, and start the query again",
                )
        self._check_consumers(infos)
        return look

    def _take_in(self, streams: Mapping[str, StreamInfo]) -> None:
        """
        Raises:
            DataLossError: A stream was deleted or made anew since the last look, or taken back to
                an older copy (`failOnDataLoss`).
            OptionError: One that came cannot be shared.
        """
        before, self.infos = self.infos, streams
        known = {name: info.created for name, info in before.items()}
        came = [name for name, info in streams.items() if known.get(name) != info.created]
        self._leave_out(name for name in came if self.is_closed or not self._may_join(name))
        for name, created in known.items():
            if name not in streams:
                self._deleted[name] = created
        self.check_there(streams, known)
        self.check_taken_back()
        self._claimant.set_consumers(self._consumers())
        if self._has_joined and self._known != self.created:
            self._join()

    def _leave_out(self, names: Iterable[str]) -> None:
        """Goes on without these, which are not read yet."""
        left = set(names)
        if self._survey.layout.is_several:
            self.infos = {name: info for name, info in self.infos.items() if name not in left}
            self._survey.set_layout(Layout.of_streams(self.infos))
            self._claimant.set_consumers(self._consumers())

    def _may_join(self, name: str) -> bool:
        return self._survey.has_begun(self.infos[name])

    def _came(self) -> list[str]:
        """Streams of several that came while the query had others, or were made anew."""
        known = self._known
        if known is None or not self._survey.layout.is_several:
            return []
        return [name for name, info in self.infos.items() if known.get(name) != info.created]

    def _consumers(self) -> list[SharedConsumer]:
        """Consumers of the streams that are there."""
        there = self.partitions.items()
        return [self._consumer(name, p, self.infos[p.stream].created) for name, p in there]

    def _consumer(self, name: str, partition: SubjectPartition, created: str) -> SharedConsumer:
        known = self._claimant.by_partition.get(name)
        if known is not None and known.created == created:
            return known
        is_several, prefix = self._survey.layout.is_several, str(self._options.consumer)
        info = self.infos.get(partition.stream)
        return SharedConsumer(
            0 if is_several else partition.index,
            partition.stream,
            shared_name(prefix, name, is_several),
            partition.filter,
            replicated=info is None or int(info.config.get("num_replicas") or 1) > 1,
            created=created,
            is_alone=is_several,
        )

    def _join(self) -> None:
        self._fits(self.infos)
        self._claimant.join(self._starts())
        self._known = self.created

    def _amid_deletions(self, look: Callable[[], T]) -> T:
        """Result of `look`; of several streams one that is deleted amid it is told by the next."""
        for _ in range(_LOOKS if self._survey.layout.is_several else 0):
            with suppress(StreamNotFoundError):
                return look()
        return look()

    def _starts(self) -> dict[str, int | None]:
        """
        By partition where a consumer begins that is made now; None for the first message. Streams
        that came while the query had others begin there where `startingOffsets` does not name them.
        """
        starting, is_several = self._options.starting, self._survey.layout.is_several
        new = {n: p for n, p in self.partitions.items() if n not in self._claimant.joined}
        came = set(self._came())
        starts: dict[str, int | None] = {}
        for where, some in (
            (starting, {n: p for n, p in new.items() if p.stream not in came}),
            (Starting(streams=starting.streams), {n: p for n, p in new.items() if n in came}),
        ):
            of = Layout.of_streams(some) if is_several else self._survey.layout
            positions = self._survey.positions(where, self.infos, "startingOffsets", of=of)
            skips = where.moment or where.word != EARLIEST or where.sequences
            at = dict(zip(some if is_several else self.partitions, positions, strict=True))
            for name, partition in some.items():
                is_whole = not skips and partition.stream not in where.streams
                starts[name] = None if is_whole else at[name] + 1
        return starts

    def check_there(self, there: Mapping[str, StreamInfo], known: Mapping[str, str]) -> None:
        """
        Args:
            there: the streams there are.
            known: creation times of streams, by name.

        Raises:
            DataLossError: One was deleted or made anew since (`failOnDataLoss`).
        """
        for name, created in known.items():
            info = there.get(name)
            if info is None:
                self._lost(name, 0, "the stream was deleted, with what was not read of it")
            elif info.created != created:
                self._lost(
                    name,
                    0,
                    f"the stream was made anew at {info.created}; what was not read of the one of"
                    f" {created} is gone",
                )

    def holding(self, marks: Mapping[str, Mark]) -> set[str]:
        """The streams that are what they were at these marks."""
        there = {name: mark for name, mark in marks.items() if name in self.infos}
        changed = lasting(lambda: self._survey.changed(there, self.infos, anew=True), self._look_on)
        return there.keys() - changed.keys()

    def check_since(self, marks: Mapping[str, Mark]) -> None:
        """
        Looks whether the streams are what they were at the marks of other queries, which may have
        seen more of them than this one's last batch.

        Raises:
            DataLossError: As `check_taken_back`.
        """
        of = {name: info.created for name, info in self.infos.items()}
        seen = {
            name: m for name, m in newer(marks, self.marks).items() if of.get(name) == m.created
        }
        self.marks = {**self.marks, **seen}
        if any(mark.sequence > self.infos[name].last_seq for name, mark in seen.items()):
            self._look_on()  # they looked later than this query
        if seen:
            self.check_taken_back()

    def check_taken_back(self) -> None:
        """
        Raises:
            DataLossError: A stream is not what it was at its mark (`failOnDataLoss`).
        """
        changes = lasting(self._changes, self._look_on)
        for name, change in changes.items():
            if change.of is not Assumption.SAME_STREAM:
                self._lost(name, 0, change.text)
        if changes:
            self.marks = self._survey.marks(self.infos)
            self._back |= {name: self.marks[name] for name in changes}

    def _changes(self) -> Mapping[str, Change]:
        """By stream what shows that it is not what it was at its mark."""
        marks = {name: mark for name, mark in self.marks.items() if name in self.infos}
        return self._survey.changed(marks, self.infos)

    def _look_on(self) -> None:
        streams = self._survey.look({}).streams  # what is gone is told by the next look
        self.infos = {name: streams.get(name, info) for name, info in self.infos.items()}

    def check_between(self, before: ClaimedOffset, upto: ClaimedOffset) -> None:
        """
        Notes streams that were taken back between two batches of the run before: what the first
        has claimed there is gone.
        """
        gone = upto.marks.keys() & (before.marks.keys() - self.holding(before.marks))
        self._back |= {name: upto.marks[name] for name in gone if name not in self._back}

    def check_made_anew(self, anew: Iterable[str], when: str = "since this query ran last") -> None:
        """
        Args:
            anew: partitions whose consumers were made anew.

        Raises:
            DataLossError: There is one (`failOnDataLoss`).
        """
        for partition in anew:
            consumer = self._claimant.by_partition[partition]
            info = self._claimant.joined[partition]
            self._lost(
                consumer.stream,
                consumer.number,
                f"the consumer '{info.name}' was made anew at {info.created}, {when}: what was"
                " acknowledged is forgotten, and comes again",
            )

    def _check_consumers(self, infos: Mapping[str, ConsumerInfo]) -> None:
        """
        Raises:
            DataLossError: One was made anew while the query ran (`failOnDataLoss`).
            ConsumerEditedError: Somebody changed what one delivers.
        """
        joined = self._claimant.joined
        for index, info in infos.items():
            if info.created != joined[index].created:
                joined[index] = info
                self.check_made_anew([index], "while the query ran")
            self._claimant.check_edited(self._claimant.by_partition[index], info)
