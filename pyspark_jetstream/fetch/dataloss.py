"""
`failOnDataLoss`: what happens when messages left a stream before they were read.

`lost` is its one gate, for drivers and tasks. Before a batch is read its streams are looked at
(`assumptions`): by the driver or, where a look would take long, by each task along with what it
asks for first (`directget`). A task looks again where a row was stored after the plan (`History`),
and after a read that found fewer messages than were counted when the batch was planned
(`check_loss`). That count is the difference of two answers, and where these came from replicas of
which one is behind, it is wrong.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from ..client.info import StreamInfo
from ..client.jetstream import JetStream
from ..client.marks import replaced
from ..errors import (
    ConsumerEditedError,
    DataLossError,
    StreamNotFoundError,
)
from ..sanitize import get_logger
from .assumptions import stream_changes
from .call import behind
from .layout import Slice

if TYPE_CHECKING:
    import pyarrow as pa

logger = get_logger(__name__)

GO_ON: Final = "To go on with what is there, set failOnDataLoss=false"

_COUNTS: Final = 64
"""Pairs of answers for a second count: with one replica of three behind, most are right."""


def report_loss(loss: DataLossError, fail_on_data_loss: bool) -> None:
    """Raises `loss`, or logs it where the query is to go on with what is there."""
    if fail_on_data_loss:
        raise loss
    logger.warning("the query goes on after a data loss, as failOnDataLoss=false says: %s", loss)


class History:
    """
    Whether the rows of a read are messages that were there when it was planned.

    A stream that is made anew, or taken back to an older copy of its store, while it is read has
    other messages under the sequences of the plan. They were stored after the plan, so the time of
    a row tells, and the server is asked only where one is later, or when a read ends for good.
    """

    def __init__(self, js: JetStream, read: Slice) -> None:
        self._js = js
        self._read = read
        self._until_us = read.mark.seen_us if read.mark is not None else None

    def check(self, batch: pa.RecordBatch) -> None:
        """
        Raises:
            DataLossError: The stream is another one now, or was taken back (`failOnDataLoss`).
        """
        if self._until_us is None or not batch.num_rows:
            return
        import pyarrow.compute as pc  # what plans has no rows

        if pc.max(batch.column("timestamp")).value > self._until_us:
            self._look()

    def end(self) -> None:
        """
        Looks once more, for reads that no later batch follows: a stream that is brought back from a
        backup has messages with the times that they had.

        Raises:
            DataLossError: As `check` does.
        """
        if self._until_us is not None:
            with suppress(StreamNotFoundError):  # its rows were read before it was deleted
                self._look()

    def _look(self) -> None:
        read, mark = self._read, self._read.mark
        assert mark is not None
        info = self._js.stream_info(read.stream)
        change = stream_changes(info, mark, bool(replaced(self._js, {read.stream: mark})))
        # Clocks of servers that led the stream in turn may differ: then it is the same, until now.
        self._until_us = info.mark.seen_us if change is None else None
        if change is not None:
            what = (
                f"{change.text}. That was while it was read: some rows are of before, some of now"
            )
            report_loss(
                DataLossError(read.stream, read.partition or 0, what), read.fail_on_data_loss
            )


def check_loss(js: JetStream, read: Slice, rows: int, recounts: bool = False) -> None:
    """
    Passes over a read that found what it should, over gaps that are no loss, and a wrong count.

    Args:
        recounts: whether to count once more. That is believed where the leader still has every
            message of the range, so that none can have left it; and where it is more than were
            found, for what has left since makes it less.

    Raises:
        DataLossError: Messages are gone, and `failOnDataLoss` is on.
        ConsumerEditedError: They are there, and the consumer did not deliver them.
    """
    if read.expected is None or rows >= read.expected:
        return
    partition = read.partition or 0
    info = js.stream_info(read.stream)
    if info.last_seq < read.end:
        what = (
            f"{read.expected - rows} of {read.expected} messages in ({read.start}, {read.end}] are"
            f" gone: the stream now ends at sequence {info.last_seq}. An older copy of it was"
            " restored, or its server lost what it had stored; with failOnDataLoss=false the query"
            " goes on without them"
        )
        report_loss(DataLossError(read.stream, partition, what), read.fail_on_data_loss)
        return
    # What only leaves a stream when our consumer settles it has no other reason to be gone.
    if info.retention == "limits" and not (info.keeps_history and info.first_seq > read.start + 1):
        if not recounts or not info.allow_direct or recount(js, read, 1) <= rows:
            return
        there = recount(js, read)
        if there <= rows:
            return
        raise ConsumerEditedError(
            read.stream,
            partition,
            f"{there} messages are in ({read.start}, {read.end}], and {rows} were delivered: the"
            " consumer was edited or reset while it was read, and set back; Spark runs the task"
            " again",
        )
    if recounts and _is_whole(js, info, read) and recount(js, read) == rows:
        logger.warning(
            "stream=%s partition=%d: %d messages were counted in (%d, %d], and there are %d. A"
            " replica lags, or differs; all that is there was read, and the query goes on",
            read.stream, partition, read.expected, read.start, read.end, rows,
        )  # fmt: skip
        return
    what = (
        f"{read.expected - rows} of {read.expected} messages in ({read.start}, {read.end}] left the"
        f" stream before they were read; it now begins at {info.first_seq}: raise its limits or"
        " read more often; with failOnDataLoss=false the query goes on without them"
    )
    report_loss(DataLossError(read.stream, partition, what), read.fail_on_data_loss)


def is_read(js: JetStream, read: Slice, last: int) -> bool:
    """Whether the range has nothing more behind `last`, by the word of the stream's leader."""
    following = js.message_get(read.stream, seq=last + 1, next_by_subj=read.filter or ">")
    return following is None or following.sequence > read.end


def recount(js: JetStream, read: Slice, pairs: int = _COUNTS) -> int:
    """Number of the range's messages, by the majority of so many pairs of answers."""
    queries = [(read.stream, behind(after, read.filter)) for after in (read.start, read.end)]
    answers = js.next_messages(queries * pairs)
    counts = Counter[int]()
    for first, beyond in zip(answers[::2], answers[1::2], strict=True):
        if first is None or first.sequence > read.end:
            counts[0] += 1
        else:
            counts[first.pending + 1 - (beyond.pending + 1 if beyond is not None else 0)] += 1
    return counts.most_common(1)[0][0]


def _is_whole(js: JetStream, info: StreamInfo, read: Slice) -> bool:
    """Whether the stream's leader has every message of the range."""
    if info.first_seq > read.start + 1 or info.last_seq < read.end:
        return False
    return not info.num_deleted or not any(
        read.start < sequence <= read.end for sequence in js.deleted(read.stream)
    )
