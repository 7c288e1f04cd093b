"""
Dead letters: made of rows that are shed or rejected, and made rows again.

Rule 1: no I/O and no loop over rows; Python looks at each distinct subject once.
Rule 2: `pyspark_jetstream.restored` gives back what `of` was given: subject, payload, headers, id.

A dead letter has the payload and the headers of its row and says where it should have gone:

    Jetstream-Sink-Original-Subject   the row's subject
    Jetstream-Sink-Reason             why it was shed, or `Rejected: ` and what the server said
    Jetstream-Sink-Priority           critical, normal or noncritical
    Jetstream-Sink-Query-Id, -Batch-Id, -Ordinal   which write, which batch, which row of its task
    Nats-Msg-Id                       `<id>.dlq` where the row has an id: an attempt of a task that
                                      sheds it again stores it once, and a stream that takes both
                                      takes neither for the other

A row that can be no message, or that the server rejects, must not stop the write: what of it cannot
stand in a dead letter is left out, and the reason says so: a subject that is none, for which
`no-subject` stands in the dead letter's own; headers that are none; headers and payload where they
are too large. Where nothing can be published on its subject, or its payload is left out, it has no
`Original-Subject`, and no replay takes it for the row.

Headers that a stream acts on, or refuses a message for, and the one that makes a message a marker,
which reads may leave out, are meant for the row's own stream (`_COMMANDS`): they get the prefix
`Jetstream-Sink-Original-`. So do those that begin with `Jetstream-Sink-`, as a row that was a dead
letter once has them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ..arrays import BINARY, CRLF, NOTHING, binary, digits, int32, join, scalar
from ..errors import RowError
from ..serverheaders import copied
from .lettersubjects import RESERVED, SUBJECT, loop_fault, publish_fault
from .messages import FRAMING_BYTES, Messages
from .priority import Priority

NO_SUBJECT: Final = "no-subject"
"""Replaces the placeholder where the row's own subject cannot be part of a subject."""

SUFFIX: Final = ".dlq"
"""Suffix of a dead letter's id."""

_OURS: Final = "Jetstream-Sink-"
ORIGINAL: Final = f"{_OURS}Original-"
ID: Final = "Nats-Msg-Id"
_COMMANDS: Final = (ID, "Nats-TTL", "Nats-Rollup", "KV-Operation")
_EXPECTED: Final = "Nats-Expected-"
_RENAMED: Final = rf"(?m)^((?:{'|'.join(_COMMANDS)}): |{_EXPECTED}|{_OURS})"
"""Finds the beginnings of header lines that are renamed."""

ADDED: Final = (
    f"{ORIGINAL}Subject",
    *(f"{_OURS}{name}" for name in ("Reason", "Priority", "Query-Id", "Batch-Id", "Ordinal")),
)
"""Headers that only a dead letter has, in the order of their lines."""

MAX_HEADERS: Final = (1 << 16) - 1
"""Bytes of a message's headers that a stream takes."""

_LONGEST: Final = 1000
"""Upper bound, where little room is left: characters of a reason, bytes of an id or a subject."""

_CUT: Final = "; headers and payload are left out, as they are too large for a dead letter"

_NO_TEXT: Final = pa.scalar(None, BINARY)

_LABELS: Final = pa.array([priority.label for priority in Priority], BINARY)


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """The dead letters of one task."""

    subject: str
    """Their subject, a template that `template_fault` accepts."""
    query_id: str
    batch_id: int
    max_payload: int = 1 << 20
    """The largest headers and payload the server takes together."""
    reserved: str = RESERVED
    """Finds subjects on which none may go."""

    def of(self, messages: Messages, reason: str | pa.Array, rejected: bool = False) -> Messages:
        """
        Dead letters of rows that are not stored; each keeps its row number.

        Args:
            reason: of all, or of each (STRING).
            rejected: whether they never will be: then they are dead letters whatever they are.

        Raises:
            RowError: A row that is shed has a subject of dead letters, so it would come back for
                ever; or its dead letter would be too large, or have a subject that is none.
        """
        names: dict[int, str] = {}
        for code in pc.unique(messages.indices).to_pylist():
            own = messages.distinct[code]
            names[code] = self._of(own)
            problem = loop_fault(self.subject, own) or publish_fault(names[code], self.reserved)
            if problem is not None and rejected:
                names[code] = self._of(NO_SUBJECT)
            elif problem is not None:
                row = messages.rows[pc.index(messages.indices, int32(code)).as_py()]
                raise RowError(own, f"row {row} cannot be a dead letter: {problem}")
        if rejected:
            messages, lines = self._fitting(messages, reason)
        else:
            lines = self._lines(messages, reason, messages.subject)
            self._check_sizes(messages, lines)
        if SUBJECT in self.subject:
            distinct = [names.get(code, "") for code in range(len(messages.distinct))]
            indices = messages.indices
        else:
            distinct = [self.subject]
            indices = pa.repeat(int32(0), len(messages))
        return replace(
            messages,
            subject=binary(pa.array(distinct, pa.string())).take(indices),
            lines=lines,
            distinct=distinct,
            indices=indices,
            targets=pa.nulls(len(distinct), pa.int32()),
            ids=None if messages.ids is None else join(messages.ids, scalar(SUFFIX)),
            since=None,
            faults=None,
        )

    def _of(self, subject: str) -> str:
        return self.subject.replace(SUBJECT, subject)

    def _fitting(self, messages: Messages, reason: str | pa.Array) -> tuple[Messages, pa.Array]:
        """Rejected rows and their header lines, without what would be too much."""
        if isinstance(reason, str):
            reason = pa.repeat(pa.scalar(reason), len(messages))
        reason = pc.utf8_slice_codeunits(reason, 0, _LONGEST)
        sound = [publish_fault(own, self.reserved) is None for own in messages.distinct]
        subject = pc.if_else(
            pa.array(sound, pa.bool_()).take(messages.indices), messages.subject, _NO_TEXT
        )
        lines = self._lines(messages, reason, subject)
        large = pc.greater(pc.add(pc.binary_length(lines), FRAMING_BYTES), MAX_HEADERS)
        large = pc.or_(large, pc.greater(_sizes(lines, messages.data), self.max_payload))
        if not pc.any(large).as_py():
            return messages, lines
        ids = messages.ids
        if ids is not None:
            long = pc.greater(pc.binary_length(ids), _LONGEST)
            ids = pc.if_else(pc.fill_null(pc.and_(large, long), False), _NO_TEXT, ids)
        own = NOTHING if messages.lines is None else messages.lines
        messages = replace(
            messages,
            lines=pc.if_else(large, NOTHING, own),
            data=pc.if_else(large, NOTHING, messages.data),
            ids=ids,
        )
        reason = pc.if_else(large, join(binary(reason), scalar(_CUT)), binary(reason))
        return messages, self._lines(messages, reason, pc.if_else(large, _NO_TEXT, subject))

    def _lines(self, messages: Messages, reason: str | pa.Array, subject: pa.Array) -> pa.Array:
        """
        The header lines of each.

        Args:
            subject: BINARY, of the row; null where it is not said.
        """
        lines = messages.lines
        if lines is not None:
            to = rf"{ORIGINAL}\1"
            lines = pc.replace_substring_regex(lines, pattern=_RENAMED, replacement=to)
        priorities = scalar(Priority.NORMAL.label)
        if messages.priorities is not None:
            priorities = _LABELS.take(messages.priorities)
        ordinals = digits(messages.rows)
        parts: list[Any] = []
        if messages.ids is not None:  # first: other headers could hide it (`serverheaders`)
            id_lines = join(scalar(f"{ID}: "), messages.ids, scalar(f"{SUFFIX}\r\n"))
            parts.append(pc.coalesce(id_lines, NOTHING))
        parts.append(NOTHING if lines is None else lines)
        reason = scalar(reason) if isinstance(reason, str) else binary(reason)
        values = (subject, reason, priorities, scalar(self.query_id),
                  scalar(str(self.batch_id)), ordinals)  # fmt: skip
        for name, value in zip(ADDED, values, strict=True):
            parts.append(pc.coalesce(join(scalar(f"{name}: "), value, CRLF), NOTHING))
        return join(*parts)

    def _check_sizes(self, messages: Messages, lines: pa.Array) -> None:
        if not len(messages):
            return
        sizes = _sizes(lines, messages.data)
        largest = pc.max(sizes).as_py()
        if largest > self.max_payload:
            place = pc.index(sizes, largest).as_py()
            raise RowError(
                messages.distinct[messages.codes[place]],
                f"row {messages.rows[place]} cannot be a dead letter: with its headers it has"
                f" {largest} bytes, more than the server's max_payload of {self.max_payload}",
            )


def _sizes(lines: pa.Array, data: pa.Array) -> pa.Array:
    return pc.add(pc.add(pc.binary_length(lines), pc.binary_length(data)), FRAMING_BYTES)


def letter(
    template: str, subject: str, headers: list[tuple[str, str]], reason: str, msg_id: str
) -> tuple[str, list[tuple[str, str]]]:
    """
    Subject and headers of a stored message's dead letter, which `restored` understands.

    Args:
        msg_id: the dead letter's own, the same at every attempt.

    Raises:
        RowError: It would come back for ever, or its subject is none.
    """
    to = template.replace(SUBJECT, subject)
    problem = loop_fault(template, subject) or publish_fault(to)
    if problem is not None:
        raise RowError(subject, f"the message cannot be a dead letter: {problem}")

    def renamed(name: str) -> str:
        is_command = name in _COMMANDS or name.startswith((_EXPECTED, _OURS))
        return f"{ORIGINAL}{name}" if is_command else name

    own = [(renamed(name), value) for name, value in copied(headers)]
    return to, [(ID, msg_id), *own, (ADDED[0], subject), (ADDED[1], reason)]
