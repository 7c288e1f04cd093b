"""
The streams and consumers of a sharing query as last seen, and proof that they are still those of
its batches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from ...client.info import ConsumerInfo, Mark, StreamInfo
from ...fetch.assumptions import Assumption, Change
from ...fetch.survey import ServerView, Survey
from ..driver import lasting
from .claimant import Claimant
from .claims import ClaimedOffset


class SharedStreams:
    """
    The streams of one query, and their shared consumers.

    Args:
        infos: the streams by a first look.
        lost: told of each loss: stream, partition, and what is gone. It raises where
            `failOnDataLoss` says so.
    """

    def __init__(
        self,
        survey: Survey,
        infos: Mapping[str, StreamInfo],
        claimant: Claimant,
        lost: Callable[[str, int, str], None],
    ) -> None:
        self.infos = infos
        """The streams, by name."""
        self.marks: Mapping[str, Mark] = {}
        """The streams as the last batch was planned by them."""
        self._back: dict[str, Mark] = {}
        """Streams that were found to be taken back, as they were then."""
        self._survey = survey
        self._claimant = claimant
        self._lost = lost

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
        if self.infos[name].created != offset.streams.get(name):
            return False
        back, mark = self._back.get(name), offset.marks.get(name)
        return back is None or (mark is not None and (mark.seen_us or 0) >= (back.seen_us or 0))

    @property
    def taken_back(self) -> frozenset[str]:
        """The streams that were, as far as this run has seen."""
        return frozenset(self._back)

    def mark(self) -> Mapping[str, Mark]:
        """Marks the streams as they are now, for the batch that is planned by them."""
        self.marks = self._survey.marks(self.infos)
        return self.marks

    def look(self) -> ServerView:
        """The streams and the consumers as they are now, in one round trip."""
        asked_s = time.monotonic()
        consumers = {c.partition: (c.stream, c.name) for c in self._claimant.consumers}
        look = self._survey.look(consumers, may_change=False)
        self._take_in(look.streams)
        infos = {index: info for index, info in look.consumers.items() if info is not None}
        self._claimant.note_clock(infos.values(), asked_s)
        self._check_consumers(infos)
        return look

    def look_at_streams(self) -> None:
        self._take_in(self._survey.look({}, may_change=False).streams)

    def _take_in(self, streams: Mapping[str, StreamInfo]) -> None:
        """
        Raises:
            DataLossError: A stream was made anew since the last look, or taken back to an older
                copy (`failOnDataLoss`).
        """
        before, self.infos = self.infos, streams
        for name, info in streams.items():
            if info.created != before[name].created:
                self._lost(
                    name,
                    0,
                    f"the stream was made anew at {info.created}, while the query ran; what was not"
                    f" read of the one of {before[name].created} is gone",
                )
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
        return self._survey.changed(self.marks, self.infos)

    def _look_on(self) -> None:
        self.infos = self._survey.look({}, may_change=False).streams

    def _check_consumers(self, infos: Mapping[int, ConsumerInfo]) -> None:
        """
        Raises:
            DataLossError: One was made anew while the query ran (`failOnDataLoss`).
            ConsumerEditedError: Somebody changed what one delivers.
        """
        for index, info in infos.items():
            consumer = self._claimant.by_partition[index]
            if info.created != self._claimant.joined[index].created:
                self._claimant.joined[index] = info
                self._lost(
                    consumer.stream,
                    index,
                    f"the consumer '{info.name}' was made anew at {info.created}, while the query"
                    " ran: what was acknowledged is forgotten, and comes again",
                )
            self._claimant.check_edited(consumer, info)
