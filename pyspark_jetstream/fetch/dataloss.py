"""
`failOnDataLoss`: the four signs that messages were lost before they were read.

1. The stream was made anew.
2. Its end lies before the position: an older copy of it was restored, or its server lost what it
   had stored.
3. Its beginning lies behind the position: unread messages were removed.
4. Another message stands under a sequence that was there. That is looked at when a run starts; that
   none stands there is no sign.

Drivers look before each batch. As limits may remove messages since, a task looks, too: where it
found fewer than were counted when its batch was planned, and before it reads where nobody counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple

from ..client.info import Mark, StreamInfo
from ..client.jetstream import JetStream
from ..errors import DataLossError
from ..sanitize import get_logger
from .layout import Slice

logger = get_logger(__name__)

GO_ON: Final = "To go on with what is there, set failOnDataLoss=false"

_OLDER: Final = "an older copy of it was restored, or its server lost what it had stored"
_ONCE_MORE: Final = "with failOnDataLoss=false what may be other messages now is read once more"


class Sign(Enum):
    """What shows a loss; the value says it in short."""

    DELETED = "stream was deleted"
    ANEW = "stream was made anew"
    SHORTER = "stream was taken back to an older copy"
    REMOVED = "messages left the stream unread"
    REPLACED = "stream was taken back to an older copy, and written to since"


class Loss(NamedTuple):
    """A sign, and what it means."""

    sign: Sign
    text: str
    """The fact, its place, and its consequence."""


def loss_of(
    info: StreamInfo | None, created: str, position: int, replaced: bool = False
) -> Loss | None:
    """
    What shows that a stream cannot be read on from a position.

    Args:
        info: the stream now; None where one of several is not there any more.
        created: creation time of the stream that was read.
        replaced: whether another message stands where one was known (`replaced`).
    """
    if info is None:
        return Loss(
            Sign.DELETED, f"the stream of {created} was deleted, with what was not read of it"
        )
    first, last = info.first_seq - 1, info.last_seq
    if info.created != created:
        return Loss(
            Sign.ANEW,
            f"the stream was made anew at {info.created} (the one of {created} was read up to"
            f" sequence {position}; this one holds {info.first_seq} to {last})",
        )
    if last < position:
        return Loss(
            Sign.SHORTER,
            f"the stream ends at sequence {last}, and was read up to {position}: {_OLDER}. The"
            f" messages from {last + 1} to {position} are gone, and others are, or will be, stored"
            f" under their sequences; {_ONCE_MORE}",
        )
    if replaced:
        return Loss(
            Sign.REPLACED,
            f"another message stands under a sequence up to which the stream was known: {_OLDER},"
            f" and it was written to since. Others may have the sequences up to {position};"
            f" {_ONCE_MORE}",
        )
    if position < first and info.keeps_history:
        return Loss(
            Sign.REMOVED,
            f"sequences {position + 1} to {first} left the stream before they were read: raise its"
            " limits, read more often, or find out who removed them",
        )
    return None


def replaced(js: JetStream, marks: Mapping[str, Mark]) -> set[str]:
    """The streams in which another message stands where the mark's was."""
    known = {name: mark for name, mark in marks.items() if mark.sequence and mark.time}
    found = js.messages_of([(name, {"seq": mark.sequence}) for name, mark in known.items()])
    return {
        name
        for name, message in zip(known, found, strict=True)
        if message is not None and message.time != known[name].time
    }


def report_loss(loss: DataLossError, fail_on_data_loss: bool) -> None:
    """Raises `loss`, or logs it where the query is to go on with what is there."""
    if fail_on_data_loss:
        raise loss
    logger.warning("the query goes on after a data loss, as failOnDataLoss=false says: %s", loss)


def check_loss(js: JetStream, read: Slice, rows: int) -> None:
    """
    Looks at the stream of a read that found fewer messages than its plan.

    Raises:
        DataLossError: The second or the third sign is there (`failOnDataLoss`).
    """
    if read.expected is None or rows >= read.expected:
        return
    info = js.stream_info(read.stream)
    loss = loss_of(info, info.created, read.start)
    if loss is None and info.last_seq < read.end:
        loss = loss_of(info, info.created, read.end)
    _report(read, loss, f"{read.expected - rows} of {read.expected} messages were not there: ")


def check_begin(js: JetStream, read: Slice) -> None:
    """
    Looks at the stream of a read whose messages nobody has counted, before it begins: afterwards
    what has been read may have left.

    Raises:
        DataLossError: The third sign is there (`failOnDataLoss`).
    """
    if read.expected is None:
        info = js.stream_info(read.stream)
        _report(read, loss_of(info, info.created, min(read.start, info.last_seq)))


def _report(read: Slice, loss: Loss | None, missing: str = "") -> None:
    if loss is not None:
        error = DataLossError(read.stream, read.partition or 0, missing + loss.text)
        report_loss(error, read.fail_on_data_loss)


def is_read(js: JetStream, read: Slice, last: int) -> bool:
    """Whether the range has nothing more behind `last`, by the word of the stream's leader."""
    following = js.message_get(read.stream, seq=last + 1, next_by_subj=read.filter or ">")
    return following is None or following.sequence > read.end
