"""What the tests of lanes share: rows, windows, and what a lane says and hears."""

from __future__ import annotations

import pyarrow as pa

from pyspark_jetstream.outbox.messages import Messages
from pyspark_jetstream.publish.lanes.flight import Window
from pyspark_jetstream.publish.settings import WindowOptions

from .model import Sent, parse

MANY = 1 << 30
INBOX = "_INBOX.0123456789abcdef"
PREFIX = f"{INBOX}.0"


class FixedLimit(Window):
    """A limit that stays."""

    def __init__(self, maximum):
        super().__init__(maximum, maximum)


def terms(limit, max_bytes=MANY, ack=5.0, publish=120.0, *, strict=False, rejects=False):
    """What a lane is made with."""
    limits = WindowOptions(1, limit.value, max_bytes, min(ack, publish), publish, strict)
    return limit, limits, rejects


def messages(subjects, data=None, *, first=0, ids=True, headers=None):
    """Rows `first`… of a task, each with its number as data and in its id."""
    rows = range(first, first + len(subjects))
    encoded = pa.array(list(subjects), pa.string()).dictionary_encode()
    lines = list(headers) if headers is not None else [b""] * len(subjects)
    if ids:
        lines = [
            b"%bNats-Msg-Id: t-%d\r\n" % (line, row) for line, row in zip(lines, rows, strict=True)
        ]
    return Messages(
        subject=pa.array([subject.encode() for subject in subjects], pa.binary()),
        lines=pa.array(lines, pa.binary()) if any(lines) else None,
        data=pa.array(data or [b"%d" % row for row in rows], pa.binary()),
        distinct=encoded.dictionary.to_pylist(),
        indices=encoded.indices,
        targets=pa.nulls(len(encoded.dictionary), pa.int32()),
        rows=pa.array(rows, pa.int64()),
    )


def sent(one, now=0.0, chunk=MANY):
    """Everything the lane sends now."""
    found: list[Sent] = []
    while (frames := one.frames_to_send(now, chunk)) is not None:
        found += parse(bytes(frames))
    return found
