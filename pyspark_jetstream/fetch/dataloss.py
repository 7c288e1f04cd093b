"""
`failOnDataLoss`: what happens when messages left a stream before they were read.

`lost` is its one gate, for drivers and tasks. A task asks once after a read, and only when it found
fewer messages than were counted when the batch was planned (`check_loss`). That count is the
difference of two answers, and where these came from replicas of which one is behind, it is wrong.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, Protocol

from ..client.info import StreamInfo
from ..client.jetstream import JetStream
from ..errors import DataLossError

__all__ = ["check_loss", "lost", "recount"]

logger = logging.getLogger(__name__)

_COUNTS: Final = 64
"""So often is counted again: with one replica of three that differs, most pairs are still right."""


def lost(loss: DataLossError, fail_on_data_loss: bool) -> None:
    """Raises `loss`, or logs it where the query is to go on with what is there."""
    if fail_on_data_loss:
        raise loss
    logger.warning("data loss: %s", loss)


class Counted(Protocol):
    """What a read says of itself."""

    @property
    def stream(self) -> str: ...
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def expected(self) -> int | None: ...
    @property
    def fail_on_data_loss(self) -> bool: ...


class Filtered(Protocol):
    """Likewise, of a read through a filter."""

    @property
    def stream(self) -> str: ...
    @property
    def filter(self) -> str | None: ...
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...


def check_loss(
    js: JetStream,
    read: Counted,
    partition: int,
    rows: int,
    again: Callable[[], int] | None = None,
) -> None:
    """
    Passes over a read that found what it should, over gaps that are no loss, and a wrong count.

    Args:
        again: counts once more. It is believed where the leader still has every message of the
            range, so that none can have left it.

    Raises:
        DataLossError: Messages are gone, and `failOnDataLoss` is on.
    """
    if read.expected is None or rows >= read.expected:
        return
    info = js.stream_info(read.stream)
    # What only leaves a stream when our consumer settles it has no other reason to be gone.
    if info.retention == "limits" and not (info.keeps_history and info.first_seq > read.start + 1):
        return
    if again is not None and _is_whole(js, info, read) and again() == rows:
        logger.warning(
            "stream=%s partition=%d: %d messages were counted in (%d, %d], and there are %d:"
            " replicas of the stream differ, or one is behind",
            read.stream, partition, read.expected, read.start, read.end, rows,
        )  # fmt: skip
        return
    what = (
        f"{read.expected - rows} of {read.expected} messages in ({read.start}, {read.end}] left the"
        f" stream before they were read; it now begins at {info.first_seq}: raise its limits or"
        " read more often; with failOnDataLoss=false the query goes on without them"
    )
    lost(DataLossError(read.stream, partition, what), read.fail_on_data_loss)


def recount(js: JetStream, read: Filtered) -> int:
    """How many messages the range holds, by what most pairs of answers say."""
    queries: list[tuple[str, dict[str, Any]]] = []
    for after in (read.start, read.end):
        query: dict[str, Any] = {"seq": after + 1}
        if read.filter is not None:
            query["next_by_subj"] = read.filter
        queries.append((read.stream, query))
    answers = js.next_messages(queries * _COUNTS)
    counts = Counter[int]()
    for first, beyond in zip(answers[::2], answers[1::2], strict=True):
        if first is None or first.sequence > read.end:
            counts[0] += 1
        else:
            counts[first.pending + 1 - (beyond.pending + 1 if beyond is not None else 0)] += 1
    return counts.most_common(1)[0][0]


def _is_whole(js: JetStream, info: StreamInfo, read: Counted) -> bool:
    """Whether the stream's leader has every message of the range."""
    if info.first_seq > read.start + 1 or info.last_seq < read.end:
        return False
    return not info.num_deleted or not any(
        read.start < sequence <= read.end for sequence in js.deleted(read.stream)
    )
