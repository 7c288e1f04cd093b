"""
Messages on their way out, by the column: subjects, payloads, header lines, ids, priorities.

Rule 1: no I/O and no loop over rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ..arrays import BINARY, NOTHING, numbers, view
from .priority import Priority

FRAMING_BYTES: Final = len(b"NATS/1.0\r\n\r\n")
"""Bytes of a header block beside its lines."""

_FRAME_BYTES: Final = 256
"""
Upper bound of a frame's bytes beside subject, headers and data: verb, reply, sizes, line ends.
"""

STORED_LESS: Final = _FRAME_BYTES - 46
"""`sizes` less about this is a message's size in a stream (nats-server, fileStoreMsgSize)."""


_NEVER: Final = pa.scalar(None, pa.float64())

_NOT: Final = pa.scalar(math.inf, pa.float64())

_NO_FAULT: Final = pa.scalar(None, pa.string())


@dataclass(frozen=True, slots=True)
class Messages:
    """Rows of one task as messages, in order; the publish mode gives them their frames."""

    subject: pa.Array
    """BINARY: where each goes."""
    lines: pa.Array | None
    """BINARY: header lines of each, each with its CRLF; None when no row has any."""
    data: pa.Array
    """BINARY: the payload of each."""
    distinct: Sequence[str]
    """The distinct subjects."""
    indices: pa.Array
    """INT32: row i goes to distinct[indices[i]]."""
    targets: pa.Array
    """INT32: the stream, by its place in `Targets`, of each distinct subject; null for none."""
    rows: pa.Array
    """INT64: each row's number in the task's input."""
    ids: pa.Array | None = None
    """BINARY: the message id of each, null for none; None when no row has any."""
    priorities: pa.Array | None = None
    """INT8: the `Priority` of each; None when all are normal."""
    sent: pa.Array | None = None
    """DOUBLE: when each was first sent (monotonic), null for never; None when none was."""
    unsure: pa.Array | None = None
    """DOUBLE: since when each may be stored, infinite for not; None when none may be."""
    faults: pa.Array | None = None
    """STRING: why each can be no message, null for those that can; None when all can."""

    def __len__(self) -> int:
        return len(self.data)

    @property
    def codes(self) -> Sequence[int]:
        """`indices` as a sequence of integers."""
        return view(self.indices)

    @property
    def urgency(self) -> pa.Array:
        """INT8: the `Priority` of each."""
        if self.priorities is not None:
            return self.priorities
        return pa.repeat(Priority.NORMAL.code, len(self))

    @property
    def row_targets(self) -> pa.Array:
        """INT32: the stream of each row, by its place in `Targets`; null for none."""
        return self.targets.take(self.indices)

    @property
    def subjects(self) -> list[str]:
        """The distinct subjects of these messages; `distinct` may have some of others, too."""
        return [self.distinct[code] for code in pc.unique(self.indices).to_pylist()]

    def parted(self) -> tuple[Messages, Messages | None]:
        """Those that can be messages, and those that cannot, if there are such."""
        if self.faults is None:
            return self, None
        bad = pc.is_valid(self.faults)
        return replace(self.where(pc.invert(bad)), faults=None), self.where(bad)

    @property
    def was_sent(self) -> bool:
        """Whether any was sent before, and so may be stored."""
        return self.sent is not None and self.sent.null_count < len(self)

    def slice(self, start: int, count: int | None = None) -> Messages:
        """`count` messages from the `start`-th on; all where it is left out."""
        return self._each(lambda array: array.slice(start, count))

    def where(self, mask: pa.Array) -> Messages:
        """Those whose mask is true."""
        return self._each(lambda array: array.filter(mask))

    def take(self, places: pa.Array) -> Messages:
        """Those in these places, in that order."""
        return self._each(lambda array: array.take(places))

    @staticmethod
    def joined(parts: Sequence[Messages]) -> Messages:
        """The messages of all parts, one at least, behind each other."""
        if len(parts) == 1:
            return parts[0]
        subject = pa.concat_arrays([part.subject for part in parts])
        encoded = subject.dictionary_encode()
        row_targets = pa.concat_arrays([part.row_targets for part in parts])
        codes = numbers(len(encoded.dictionary))
        return Messages(
            subject=subject,
            lines=_stacked([(part.lines, len(part)) for part in parts], NOTHING),
            data=pa.concat_arrays([part.data for part in parts]),
            distinct=encoded.dictionary.cast(pa.string()).to_pylist(),
            indices=encoded.indices,
            targets=row_targets.take(pc.index_in(codes, encoded.indices)),
            rows=pa.concat_arrays([part.rows for part in parts]),
            ids=_stacked([(part.ids, len(part)) for part in parts], pa.scalar(None, BINARY)),
            priorities=_stacked(
                [(part.priorities, len(part)) for part in parts], Priority.NORMAL.code
            ),
            sent=_stacked([(part.sent, len(part)) for part in parts], _NEVER),
            unsure=_stacked([(part.unsure, len(part)) for part in parts], _NOT),
            faults=_stacked([(part.faults, len(part)) for part in parts], _NO_FAULT),
        )

    def _each(self, change: Any) -> Messages:
        return replace(
            self,
            subject=change(self.subject),
            lines=None if self.lines is None else change(self.lines),
            data=change(self.data),
            indices=change(self.indices),
            rows=change(self.rows),
            ids=None if self.ids is None else change(self.ids),
            priorities=None if self.priorities is None else change(self.priorities),
            sent=None if self.sent is None else change(self.sent),
            unsure=None if self.unsure is None else change(self.unsure),
            faults=None if self.faults is None else change(self.faults),
        )


def _stacked(parts: Sequence[tuple[pa.Array | None, int]], filler: pa.Scalar) -> pa.Array | None:
    """The arrays behind each other, the filler where there is none; None where there is none."""
    if all(array is None for array, _ in parts):
        return None
    return pa.concat_arrays(
        [pa.repeat(filler, count) if array is None else array for array, count in parts]
    )


def sizes(messages: Messages) -> pa.Array:
    """INT64: bytes of each one's frame, at most."""
    frame_bytes = pc.add(pc.binary_length(messages.data), pc.binary_length(messages.subject))
    if messages.lines is not None:
        frame_bytes = pc.add(frame_bytes, pc.binary_length(messages.lines))
    return pc.add(frame_bytes.cast(pa.int64()), _FRAME_BYTES)
