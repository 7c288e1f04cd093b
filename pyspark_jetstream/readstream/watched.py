"""
The streams and watched consumers of a query as last seen, and proof that they are still those of
its checkpoint.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from ..client.info import Mark, StreamInfo
from ..client.patience import Patience
from ..errors import OffsetError, OptionError
from ..fetch.dataloss import Loss, Sign, loss_of, replaced
from ..fetch.layout import Layout
from ..fetch.survey import ServerView, Survey, check_direct
from ..sanitize import get_logger
from .offsets import Offset, check_layout
from .options import SourceOptions
from .seats import Seats

logger = get_logger(__name__)

_SETTLES_S: Final = 3.0
_SETTLES_EVERY_S: Final = 0.2
"""Seconds that a stream has to seem to be taken back, and between looks at it."""

_SEATS_EVERY_S: Final = 1.0
_SEATS_A_SECOND: Final = 8
"""Seconds between looks at all consumers, and how many are looked at in one at the most."""


class WatchedStreams:
    """
    The streams and consumers of one query.

    Args:
        lost: told of each loss: stream, partition, and what is gone. It raises where
            `failOnDataLoss` says so.
    """

    def __init__(
        self,
        options: SourceOptions,
        survey: Survey,
        seats: Seats,
        lost: Callable[[str, int, str], None],
    ) -> None:
        self.seen = ServerView({}, {}, -math.inf)
        """The server's last answers."""
        self._seats_seen = -math.inf
        """Time of the last look at all consumers."""
        self._options = options
        self._survey = survey
        self._seats = seats
        self._lost = lost
        self._replaced: frozenset[tuple[str, Mark]] | None = None
        """
        Streams in which another message stands than when the run before saw them, with the mark of
        that time; None before that was asked.
        """

    def look(self) -> None:
        """Looks at the streams, and at consumers: now and then at all of them."""
        seats = len(self._seats.layout)
        now, every_s = time.monotonic(), max(_SEATS_EVERY_S, seats / _SEATS_A_SECOND)
        is_time = now - self._seats_seen >= every_s
        self._seats_seen = now if is_time else self._seats_seen
        self.seen = self._survey.look(self._seats.watched(all_=is_time))

    def forget_consumers(self) -> None:
        """Forgets the consumers that were seen: this run has just made them its own."""
        self.seen = replace(self.seen, consumers={})

    @property
    def infos(self) -> Mapping[str, StreamInfo]:
        """The streams, by name."""
        return self.seen.streams

    def check_readable(self) -> None:
        """
        Raises:
            OptionError: A stream that keeps messages only for consumers is one of several, or has
                direct get off.
        """
        for info in self.infos.values():
            if info.retention == "limits":
                continue
            if self._options.several is not None:
                raise OptionError(
                    self._options.several.option,
                    f"several streams are read without consumers, but stream '{info.name}' keeps"
                    f" messages only for these (retention {info.retention}): read it by itself",
                )
            check_direct(info)
            if info.config.get("deny_purge") and info.retention == "workqueue":
                raise OptionError(
                    "stream",
                    f"work queue '{info.name}' has deny_purge, and what a query has read leaves it"
                    " by a purge: read a stream without it, such as one that sources this one",
                )

    def check_fits(self, offset: Offset, ends: Mapping[int, int]) -> None:
        """
        Accepts a checkpoint of this query.

        Args:
            ends: by partition, the sequence that `endingOffsets` names.

        Raises:
            OptionError, OffsetError: It has another consumer or layout, or has read further.
        """
        self._survey.known = offset.layout.streams
        named = self._options.consumer
        if named is not None and named != offset.consumer:
            raise OptionError(
                "consumer",
                f"the checkpoint has '{offset.consumer}', by which this query has read so far, and"
                f" goes on with it, not with '{named}': give consumer={offset.consumer}, to whoever"
                " stands by (standby), too, or leave the option out",
            )
        check_layout(offset.layout, self._survey.layout, self._options.several)
        for index, end in ends.items():
            if offset.sequences[index] > end:
                of, number = offset.layout.within(index)
                raise OffsetError(
                    f"partition {number} of stream '{of.partitions[number].stream}' was read up to"
                    f" sequence {offset.sequences[index]}, beyond its endingOffsets {end}: stop the"
                    " query first, then take the offsets anew"
                )

    def checked(self, offset: Offset) -> Offset:
        """
        The offset, after every check that its messages are still to be had; with
        `failOnDataLoss=false` moved to where reading can go on, without streams that were deleted.

        Raises:
            DataLossError: They are not (`failOnDataLoss`).
            ConsumerEditedError: Somebody changed what a consumer of the query delivers.
        """
        self.check_consumers()
        losses = self._lasting(offset)
        if not losses:
            return offset
        sequences, base, streams = list(offset.sequences), list(offset.base), dict(offset.streams)
        for index, loss in losses.items():
            stream = offset.layout.partitions[index].stream
            self._lost(stream, index, loss.text)
            if (info := self.infos.get(stream)) is None:
                continue
            streams[stream] = info.created
            sequences[index] = max(0, info.first_seq - 1)
            if loss.sign is not Sign.REMOVED:
                # From where on it holds other messages than were read cannot be told.
                base[index] = sequences[index]
        moved = replace(offset, sequences=tuple(sequences), base=tuple(base), streams=streams)
        there = [name for name in offset.layout.streams if name in self.infos]
        if len(there) == len(offset.layout.streams):
            return moved
        return moved.laid_out(Layout.of_streams(there), {}, {})

    def check_batch(self, offset: Offset, upto: Offset) -> None:
        """
        Whether the messages that a batch was planned with are still to be had.

        Raises:
            DataLossError: They are not, or others have their sequences (`failOnDataLoss`).
            ConsumerEditedError: As `checked` does.
        """
        self._find_replaced(upto)
        self.checked(offset)
        for index, loss in self._lasting(upto).items():
            if loss.sign not in (Sign.ANEW, Sign.DELETED):  # that was told
                self._lost(upto.layout.partitions[index].stream, index, loss.text)

    def _lasting(self, offset: Offset) -> dict[int, Loss]:
        """Losses by partition; a new leader may not yet say all that its stream has."""
        self._find_replaced(offset)
        found = self._losses(offset)
        patience = Patience(_SETTLES_S, pause_s=_SETTLES_EVERY_S)
        while not patience.over and any(each.sign is Sign.SHORTER for each in found.values()):
            patience.pause()
            self.look()
            found = self._losses(offset)
        return found

    def _find_replaced(self, offset: Offset) -> None:
        """When the run starts: which streams have another message than the run before has seen."""
        if self._replaced is None:
            there = {name: mark for name, mark in offset.marks.items() if name in self.infos}
            names = replaced(self._survey.js, there)
            self._replaced = frozenset((name, there[name]) for name in names)

    def _losses(self, offset: Offset) -> dict[int, Loss]:
        """By partition what shows that its stream cannot be read on from the offset."""
        losses = {}
        for p, at in zip(offset.layout, offset.sequences, strict=True):
            info, mark = self.infos.get(p.stream), offset.marks.get(p.stream)
            is_replaced = (p.stream, mark) in (self._replaced or ())
            if loss := loss_of(info, offset.streams[p.stream], at, is_replaced):
                losses[p.index] = loss
        return losses

    def check_consumers(self) -> None:
        """Compares the consumers as they were seen last with what they were made as."""
        self._seats.check(self.infos, self.seen.consumers)
