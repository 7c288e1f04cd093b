"""
Rows that are shed or rejected as dead letters, and dead letters as the rows they were.

Rule 1: no I/O and no loop over rows; Python looks at each distinct subject once.
Rule 2: `restore` gives back what `of` was given: subject, payload, header lines, id.

A dead letter has the payload and the headers of its row and says where it should have gone:

    Jetstream-Sink-Original-Subject   the row's subject
    Jetstream-Sink-Reason             why it was shed, or `Rejected: ` and what the server said
    Jetstream-Sink-Priority           critical, normal or noncritical
    Jetstream-Sink-Query-Id, -Batch-Id, -Ordinal   which write, which batch, which row of its task
    Nats-Msg-Id                       `<id>.dlq` where the row has an id: an attempt of a task that
                                      sheds it again stores it once, and a stream that takes both
                                      takes neither for the other

Headers that a stream acts on, or refuses a message for, are meant for the row's own stream
(`_COMMANDS`): they get the prefix `Jetstream-Sink-Original-`. So do those that begin with
`Jetstream-Sink-`, as a row that was a dead letter once has them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from .. import values as value_of
from ..arrays import (
    BINARY,
    CRLF,
    NOTHING,
    binary,
    bounds,
    digits,
    entries,
    int32,
    join,
    places,
    scalar,
)
from ..errors import RowError
from ..serverheaders import copied
from ..subjects import FOREIGN, MAX_SUBJECT_BYTES, subject_fault
from .messages import FRAMING_BYTES, Messages
from .priority import Priority

__all__ = ["DeadLetters", "SUBJECT", "SUFFIX", "dead_letter_subject", "fault", "letter", "restore"]

SUBJECT: Final = "{subject}"
"""What stands for the row's own subject in the template, once at most."""

SUFFIX: Final = ".dlq"
"""Of a dead letter's id."""

_OURS: Final = "Jetstream-Sink-"
_ORIGINAL: Final = f"{_OURS}Original-"
_ID: Final = "Nats-Msg-Id"
_COMMANDS: Final = (_ID, "Nats-TTL", "Nats-Rollup")
_EXPECTED: Final = "Nats-Expected-"
_RENAMED: Final = rf"(?m)^((?:{'|'.join(_COMMANDS)}): |{_EXPECTED}|{_OURS})"
"""Finds the beginnings of header lines that are renamed."""

_ADDED: Final = (
    f"{_ORIGINAL}Subject",
    *(f"{_OURS}{name}" for name in ("Reason", "Priority", "Query-Id", "Batch-Id", "Ordinal")),
)
"""Headers that only a dead letter has, in the order of their lines."""

_LABELS: Final = pa.array([priority.label for priority in Priority], BINARY)
_HEADERS: Final = pa.map_(pa.string(), pa.list_(pa.field("element", pa.string())))


def fault(template: str, subject: str | None = None) -> str | None:
    """
    Why dead letters cannot go where this template says, or None if they can.

    Args:
        subject: of all rows, where it is known.
    """
    if template.count(SUBJECT) > 1:
        return f"{SUBJECT} stands in it more than once"
    if template == SUBJECT:
        return "dead letters would go where their rows should"
    problem = _publish_fault(template.replace(SUBJECT, "x"))
    return problem if problem is not None or subject is None else _loop(template, subject)


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """The dead letters of one task."""

    subject: str
    """Where they go, a template that `fault` accepts."""
    query_id: str
    batch_id: int
    max_payload: int | None = None
    """The largest headers and payload the server takes together; None leaves it to the server."""

    def of(self, messages: Messages, reason: str | pa.Array) -> Messages:
        """
        What becomes of rows that are shed; each keeps its row number.

        Args:
            reason: of all, or of each (STRING).

        Raises:
            RowError: A row's own subject is one of dead letters, so it would come back for ever;
                or its dead letter would be too large, or have a subject that is none.
        """
        for code in pc.unique(messages.indices).to_pylist():
            own = messages.distinct[code]
            problem = _loop(self.subject, own) or _publish_fault(self._of(own))
            if problem is not None:
                row = messages.rows[pc.index(messages.indices, int32(code)).as_py()]
                raise RowError(own, f"row {row} cannot be a dead letter: {problem}")
        lines, ids = self._lines(messages, reason), messages.ids
        self._check_sizes(messages, lines)
        if SUBJECT in self.subject:
            distinct, indices = [self._of(own) for own in messages.distinct], messages.indices
        else:
            distinct = [self.subject]
            indices = pa.repeat(int32(0), len(messages))
        return replace(
            messages,
            subject=binary(pa.array(distinct, pa.string())).take(indices),
            lines=lines,
            distinct=distinct,
            indices=indices,
            targets=None,
            ids=None if ids is None else join(ids, scalar(SUFFIX)),
            sent=None,
            unsure=None,
        )

    def _of(self, subject: str) -> str:
        return self.subject.replace(SUBJECT, subject)

    def _lines(self, messages: Messages, reason: str | pa.Array) -> pa.Array:
        """The header lines of each."""
        lines = messages.lines
        if lines is not None:
            to = rf"{_ORIGINAL}\1"
            lines = pc.replace_substring_regex(lines, pattern=_RENAMED, replacement=to)
        priorities = scalar(Priority.NORMAL.label)
        if messages.priorities is not None:
            priorities = _LABELS.take(messages.priorities)
        ordinals = digits(messages.rows)
        parts: list[Any] = []
        if messages.ids is not None:  # first: other headers could hide it (`serverheaders`)
            id_lines = join(scalar(f"{_ID}: "), messages.ids, scalar(f"{SUFFIX}\r\n"))
            parts.append(pc.coalesce(id_lines, NOTHING))
        parts.append(NOTHING if lines is None else lines)
        reason = scalar(reason) if isinstance(reason, str) else binary(reason)
        values = (messages.subject, reason, priorities, scalar(self.query_id),
                  scalar(str(self.batch_id)), ordinals)  # fmt: skip
        for name, value in zip(_ADDED, values, strict=True):
            parts += [scalar(f"{name}: "), value, CRLF]
        return join(*parts)

    def _check_sizes(self, messages: Messages, lines: pa.Array) -> None:
        if self.max_payload is None or not len(messages):
            return
        sizes = pc.add(pc.binary_length(lines), pc.binary_length(messages.data))
        sizes = pc.add(sizes, FRAMING_BYTES)
        largest = pc.max(sizes).as_py()
        if largest > self.max_payload:
            place = pc.index(sizes, largest).as_py()
            raise RowError(
                messages.distinct[messages.codes[place]],
                f"row {messages.rows[place]} cannot be a dead letter: with its headers it has"
                f" {largest} bytes, more than the server's max_payload of {self.max_payload}",
            )


def letter(
    template: str, subject: str, headers: list[tuple[str, str]], reason: str, msg_id: str
) -> tuple[str, list[tuple[str, str]]]:
    """
    Subject and headers of a stored message's dead letter, which `restore` understands.

    Args:
        msg_id: the dead letter's own, the same at every attempt.

    Raises:
        RowError: It would come back for ever, or its subject is none.
    """
    to = template.replace(SUBJECT, subject)
    problem = _loop(template, subject) or _publish_fault(to)
    if problem is not None:
        raise RowError(subject, f"the message cannot be a dead letter: {problem}")
    renamed = [
        (
            f"{_ORIGINAL}{name}"
            if name in _COMMANDS or name.startswith((_EXPECTED, _OURS))
            else name,
            value,
        )
        for name, value in copied(headers)
    ]
    return to, [(_ID, msg_id), *renamed, (_ADDED[0], subject), (_ADDED[1], reason)]


def restore(headers: pa.Array) -> pa.Array:
    """
    What the rows of dead letters were, by the column `headers` of a read.

    Returns:
        STRUCT of `subject`, null where a message is no dead letter; `headers` but for the id;
        `msg_id`, of several the first, which is the one that counts; `reason`, up to its colon,
        and `priority`.
    """
    starts, keys, values = entries(headers)
    names = keys.cast(pa.string())
    parents = pc.list_parent_indices(pa.ListArray.from_arrays(starts, names))
    rows = places(len(headers))

    def value(name: str) -> pa.Array:
        """The first one of this name in each row."""
        of_name = pc.indices_nonzero(pc.equal(names, name))
        first_values = pc.list_element(values.take(of_name), 0).cast(pa.string())
        return first_values.take(pc.index_in(rows, parents.take(of_name)))

    gone = pc.is_in(names, pa.array([*_ADDED, _ID, f"{_ORIGINAL}{_ID}"], pa.string()))
    kept = pc.invert(gone)
    old = names.filter(kept)
    renamed = pc.starts_with(old, _ORIGINAL)
    new = pc.if_else(renamed, pc.utf8_slice_codeunits(old, len(_ORIGINAL)), old)
    lists = values.filter(kept).cast(_HEADERS.item_type)
    restored = pa.MapArray.from_arrays(bounds(kept).take(starts), new, lists).cast(_HEADERS)
    subject, reason, priority = _ADDED[:3]
    word = pc.list_element(pc.split_pattern(value(reason), ": ", max_splits=1), 0)
    return pa.StructArray.from_arrays(
        [value(subject), restored, value(f"{_ORIGINAL}{_ID}"), word, value(priority)],
        ["subject", "headers", "msg_id", "reason", "priority"],
    )


def _publish_fault(subject: str) -> str | None:
    """Why no dead letter can be published on this subject."""
    problem = subject_fault(subject)
    if problem is not None:
        return f"on {subject!r} nothing can be published: {problem}"
    if subject.startswith(FOREIGN):
        return f"a message on {subject!r} is a command to the server"
    if len(subject.encode()) > MAX_SUBJECT_BYTES:
        return f"the subject is longer than a protocol line: {subject[:40]}…"
    return None


def _loop(template: str, subject: str) -> str | None:
    """Why rows on this subject are no rows but dead letters."""
    before, placeholder, after = template.partition(SUBJECT)
    room = len(subject) - len(before) - len(after)
    if room > 0 if placeholder else room == 0:
        if subject.startswith(before) and subject.endswith(after):
            return f"{subject!r} is a subject of dead letters ({template!r}) itself"
    return None


def dead_letter_subject(value: str) -> str:
    """Where dead letters go; it may hold the message's own subject."""
    template = value_of.text(value)
    why = fault(template)
    if why is not None:
        raise ValueError(f"expected a subject, {SUBJECT} in it or not: {why}")
    return template
