"""
Arrow batches as messages: the role of each column, the subject of each row, its header lines.

Rule 1: whatever is wrong with a row is found here, before any byte of its batch is sent. It is an
error that names the first such row, or, with `onReject`, that row's own: the others go on.
Rule 2: no I/O and no loop over rows; a batch is a handful of Arrow kernels. Only what is known of
a *subject* (its validity, its stream) is worked out once for each distinct one.

Columns: `data` BINARY or STRING, which is never null; `subject` STRING, unless the option
`subject` names one for all rows (then it wins over the column); `headers` MAP of STRING to STRING
or to ARRAY of STRING, or null; `msg_id` STRING, or null; those of `headerlines`.

**Message ids.** A row's `Nats-Msg-Id` is its `msg_id`, else the one among its `headers`, else,
when ids are wanted, `<prefix>-<row number>`. Both a `msg_id` and such a header is an error. An
empty id is none.

Which of its `headers` go out is in `headerlines`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from .. import subjects
from ..arrays import BINARY, CRLF, NOTHING, binary, digits, int32, join, places, scalar
from ..errors import RowError
from ..outbox.lettersubjects import publish_fault
from ..outbox.messages import FRAMING_BYTES, Messages, UnfitError, refuse, sound
from ..outbox.priority import Publish, Rows
from ..outbox.targets import Targets, untaken
from ..publish.settings import SinkOptions
from ..subjects import MAX_SUBJECT_BYTES
from .headerlines import BLANK, ID, Commands, Headers, check_keys, of_keys

if TYPE_CHECKING:
    from .reroutes import Reroutes

_CLAIMS: Final = pa.map_(pa.string(), pa.string())
_BAD_ID: Final = r"[\r\n]|^[ \t]|[ \t]$"
"""The server takes blanks around an id off."""


class MessageBuilder:
    """
    Turns the batches of one task, in order, into messages.

    Args:
        options: which rows are messages, where they go, and how urgent they are.
        partition: the task's, for what errors say.
        id_prefix: of the ids made for rows without one; None makes none.
        max_payload: the largest headers and payload the server takes together.
        targets: the streams, where it matters what they allow.
        reroutes: where rows go whose subject is paused.
    """

    def __init__(
        self,
        options: SinkOptions,
        *,
        partition: int = 0,
        id_prefix: str | None = None,
        max_payload: int = 1 << 20,
        targets: Targets | None = None,
        reroutes: Reroutes | None = None,
    ) -> None:
        self.rows = 0
        """Rows seen so far; the number of the next one."""
        self.lost = 0
        """Rows that the mapping loses, as its weights say."""
        self.unrecognised = 0
        """Values that should name a priority and do not."""
        self.left_out: set[str] = set()
        """Names of headers of rows that did not go out."""
        self.max_payload = max_payload
        self._options = options.rows
        self._priorities = options.priorities
        self._reroutes = reroutes
        self._partition = partition
        self._id_prefix = id_prefix
        self._targets = targets or Targets()

    def build(self, batch: pa.RecordBatch) -> Messages:
        """
        The rows of the next batch, in order, but those that the mapping loses.

        Where rows may be rejected (`onReject`), those that can be no messages are the last ones,
        with their `faults`.

        Raises:
            RowError: A row cannot be a message; names the first such row.
        """
        bucket = self._options.bucket
        batch = batch.rename_columns([name.lower() for name in batch.schema.names])
        if bucket is not None:
            batch = of_keys(batch, subjects.bucket_prefix(bucket))
        numbers = pc.add(places(batch.num_rows), self.rows)
        rows, refused = batch, list[Messages]()
        while True:
            try:
                messages = self._messages(rows, numbers)
                break
            except UnfitError as unfit:
                faults, bad = unfit.faults, pc.is_valid(unfit.faults)
                if not self._options.rejects:
                    raise self._error(rows, numbers, faults) from None
                part = _where(rows, bad), numbers.filter(bad), faults.filter(bad)
                refused.append(self._refused(*part))
                assert len(part[1]), f"a check names no row at fault: {unfit}"
                rows, numbers = _where(rows, pc.invert(bad)), numbers.filter(pc.invert(bad))
        self.rows += batch.num_rows
        return Messages.joined([messages, *refused])

    def _messages(self, batch: pa.RecordBatch, numbers: pa.Array) -> Messages:
        """
        Raises:
            UnfitError: Some rows cannot be messages.
        """
        if self._options.bucket is not None:
            prefix = subjects.bucket_prefix(self._options.bucket)
            check_keys(batch.column("subject"), prefix)
        commands = Commands(batch)
        data = commands.payloads(_data(batch))
        headers = Headers(batch, self._options.allow_rollup)
        if (faults := headers.faults()) is not None:
            raise UnfitError(faults)
        ids, id_lines = self._ids(batch, numbers, headers)
        column = self._destinations(batch, headers, ids, numbers)
        distinct, indices = column.dictionary, column.indices
        targets = self._targets.of(distinct, self._options.rejects)
        self._check_taken(distinct, targets, indices)
        codes = targets.take(indices)
        headers.drop_refused(self._targets, codes)
        # Before what others may have written: it could hide them from the server (`serverheaders`).
        lines = _joined(id_lines, *commands.lines(ids), *headers.lines())
        self._check_sizes(lines, data)
        rows = _rows(batch, distinct, indices, data, headers)
        priorities, unrecognised = self._priorities.of(rows)
        self.unrecognised += unrecognised
        self.left_out |= headers.left_out()
        messages = Messages(
            subject=binary(distinct).take(indices),
            lines=lines,
            data=data,
            distinct=distinct.to_pylist(),
            indices=indices,
            targets=targets,
            rows=numbers,
            ids=ids,
            priorities=priorities,
        )
        if not indices.null_count:
            return messages
        self.lost += indices.null_count
        return messages.where(pc.is_valid(indices))

    def _check_sizes(self, lines: pa.Array | None, data: pa.Array) -> None:
        sizes = pc.binary_length(data)
        if lines is not None:
            sizes = pc.add(sizes, pc.add(pc.binary_length(lines), FRAMING_BYTES))
        largest = pc.max(sizes).as_py()
        if largest is not None and largest > self.max_payload:
            why = (
                " bytes of headers and data are more than the server's max_payload of"
                f" {self.max_payload}; make the row smaller, or raise that limit in the server's"
                " configuration"
            )
            reasons = join(digits(sizes), scalar(why)).cast(pa.string())
            refuse(pc.greater(sizes, self.max_payload), reasons)

    # ── rows that can be no messages ─────────────────────────────────────────────────────────

    def _error(self, batch: pa.RecordBatch, numbers: pa.Array, faults: pa.Array) -> RowError:
        """The fault of the first of these rows."""
        place = pc.index(pc.is_valid(faults), True).as_py()
        subject = self._own_subjects(batch.slice(place, 1))[0].as_py()
        row = f"row {numbers[place]} of partition {self._partition}"
        apart = "correct the row, or let onReject=dead-letter store such rows elsewhere"
        return RowError(subject, f"{row}: {faults[place]}; {apart}")

    def _refused(self, batch: pa.RecordBatch, numbers: pa.Array, faults: pa.Array) -> Messages:
        """Rows that can be no messages, with what of them can be written elsewhere."""
        headers = Headers(batch, self._options.allow_rollup)
        headers.drop_faults()
        ids, id_lines = self._ids(batch, numbers, headers, strict=False)
        command_lines = Commands(batch, strict=False).lines(None)
        subjects_ = self._own_subjects(batch).dictionary_encode()
        names = subjects_.dictionary.to_pylist()
        return Messages(
            subject=binary(subjects_.dictionary).take(subjects_.indices),
            lines=_joined(id_lines, *command_lines, *headers.lines()),
            data=pc.coalesce(_data(batch), NOTHING),
            distinct=names,
            indices=subjects_.indices,
            targets=pa.nulls(len(names), pa.int32()),
            rows=numbers,
            ids=ids,
            faults=faults,
        )

    def _own_subjects(self, batch: pa.RecordBatch) -> pa.Array:
        """STRING: where each row says that it goes, empty where that is no text."""
        if self._options.subject is not None:
            return pa.repeat(pa.scalar(self._options.subject), batch.num_rows)
        encoded = binary(batch.column("subject")).dictionary_encode()
        names = [_text(name) for name in encoded.dictionary.to_pylist()]
        return pc.coalesce(pa.array(names, pa.string()).take(encoded.indices), "")

    # ── subjects ─────────────────────────────────────────────────────────────────────────────

    def _destinations(
        self, batch: pa.RecordBatch, headers: Headers, ids: pa.Array | None, numbers: pa.Array
    ) -> pa.DictionaryArray:
        """The subjects to publish on; the index of a row that is lost is null."""
        count, mapping = batch.num_rows, self._options.mapping
        if self._options.subject is not None:
            column = pa.DictionaryArray.from_arrays(
                pa.repeat(int32(0), count), pa.array([self._options.subject], pa.string())
            )
        else:
            plain = batch.column("subject").cast(pa.string())
            why = "column subject is null"
            refuse(pc.is_null(plain), why)
            column = plain.dictionary_encode()
            _check_utf8(column)
        if mapping is None or not count:
            self._check_subjects(column)
            return column
        self._check_subjects(column, published=False)
        identities = None
        if mapping.needs_identity:
            identities = self._identities(column, headers, ids, numbers)
        mapped, faults = mapping.map_rows(column, identities)
        if faults is not None:
            raise UnfitError(faults)
        if self._reroutes is not None:
            mapped = self._reroutes.of(column, identities, mapped)
        self._check_subjects(mapped)
        return mapped

    def _identities(
        self, column: pa.DictionaryArray, headers: Headers, ids: pa.Array | None, numbers: pa.Array
    ) -> pa.Array:
        """The value that picks a weighted destination: the key, else the id, else the position."""
        position = join(scalar(f"{self._partition}-"), digits(numbers))
        identity = position if ids is None else pc.coalesce(ids, position)
        if self._options.mapping_key is None:
            return identity
        if self._options.mapping_key == "subject":
            return binary(column.dictionary).take(column.indices)
        keys = headers.values(self._options.mapping_key)
        return identity if keys is None else pc.coalesce(binary(keys), identity)

    def _check_subjects(self, column: pa.DictionaryArray, published: bool = True) -> None:
        """A subject of the rows, or one that goes out, must be one."""
        names = column.dictionary
        bad = pc.match_substring_regex(names, subjects.FAULTY)
        if published:
            bad = pc.or_(bad, pc.match_substring_regex(names, self._options.reserved))
            bad = pc.or_(bad, pc.greater(pc.binary_length(names), MAX_SUBJECT_BYTES))
        if pc.any(bad).as_py():
            fault = partial(publish_fault, reserved=self._options.reserved)
            raise _of_each(names, bad, fault, column.indices)

    def _check_taken(self, distinct: pa.Array, targets: pa.Array, indices: pa.Array) -> None:
        """A subject of the rows must be one that a stream takes, where that can be told."""
        is_known = self._options.require_stream and not self._targets.is_blind
        if targets.null_count and is_known:
            raise _of_each(distinct, pc.is_null(targets), untaken, indices)

    # ── headers ──────────────────────────────────────────────────────────────────────────────

    def _ids(
        self, batch: pa.RecordBatch, numbers: pa.Array, headers: Headers, strict: bool = True
    ) -> tuple[pa.Array | None, pa.Array | None]:
        """
        The id of each row, and the lines of those that are not among its headers.

        Args:
            strict: whether what is no id is the row's fault; else it is left out.
        """
        given = batch.column("msg_id").cast(pa.string()) if "msg_id" in batch.schema.names else None
        if given is not None:
            given = sound(given, pc.match_substring_regex(given, BLANK))
            why = "msg_id contains a line break or outer blanks"
            bad = pc.match_substring_regex(given, _BAD_ID)
            given = sound(given, bad, why if strict else None)
            if given.null_count == len(given):
                given = None
        named = headers.values(ID)
        if named is not None and strict:
            bad = pc.match_substring_regex(named, _BAD_ID)
            sound(named, bad, f"the header {ID} has outer blanks")
        if given is not None and named is not None and strict:
            both = pc.and_(pc.is_valid(given), pc.is_valid(named))
            refuse(both, f"both a msg_id and the header {ID}; drop one")
        own = None if given is None else binary(given)
        if self._id_prefix is not None:
            made = join(scalar(f"{self._id_prefix}-"), digits(numbers))
            if named is not None:
                made = pc.if_else(pc.is_valid(named), pa.scalar(None, BINARY), made)
            own = made if own is None else pc.coalesce(own, made)
        if own is None:
            return (None if named is None else binary(named)), None
        lines = pc.coalesce(join(scalar(f"{ID}: "), own, CRLF), NOTHING)
        return (own if named is None else pc.coalesce(own, binary(named))), lines


def _where(batch: pa.RecordBatch, mask: pa.Array) -> pa.RecordBatch:
    """The rows whose mask is true; Arrow has no filter for views."""
    plain = {"string_view": pa.string(), "binary_view": BINARY}
    columns = [
        column.cast(plain.get(str(column.type), column.type)).filter(mask)
        for column in batch.columns
    ]
    return pa.record_batch(columns, batch.schema.names)


def _of_each(
    names: pa.Array, bad: pa.Array, why: Callable[[str], str | None], indices: pa.Array
) -> UnfitError:
    """The fault of rows whose subject is bad, said once for each subject."""
    flags = zip(names.to_pylist(), pc.fill_null(bad, False).to_pylist(), strict=True)
    reasons = [why(name) if is_bad and name is not None else None for name, is_bad in flags]
    return UnfitError(pa.array(reasons, pa.string()).take(indices))


def _check_utf8(column: pa.DictionaryArray) -> None:
    """Spark lets any bytes be a STRING."""
    encoded = binary(column.dictionary)
    try:
        encoded.cast(pa.string())
    except pa.ArrowInvalid:
        reasons = [
            f"the subject is not UTF-8: {name[:40]!r}" if _text(name) is None else None
            for name in encoded.to_pylist()
        ]
        raise UnfitError(pa.array(reasons, pa.string()).take(column.indices)) from None


def _text(name: bytes | None) -> str | None:
    try:
        return None if name is None else name.decode()
    except UnicodeDecodeError:
        return None


def _rows(
    batch: pa.RecordBatch, distinct: pa.Array, indices: pa.Array, data: pa.Array, headers: Headers
) -> Rows:
    """A batch as `priority` sees it."""
    names = batch.schema.names

    def claim(name: str) -> pa.Array | None:
        header = headers.values(name)
        if "claims" not in names:
            return header
        # Copied: of a slice that was cast, map_lookup of pyarrow 18 to 22 takes the wrong rows.
        claims = pa.concat_arrays([batch.column("claims").cast(_CLAIMS)])
        claim = pc.map_lookup(claims, name, "first")
        return claim if header is None else pc.coalesce(claim, header)

    def publish(row: int) -> Publish:
        pairs = batch.column("headers")[row].as_py() if "headers" in names else None
        first_values: dict[str, str] = {}
        for name, value in pairs or ():
            first = value if isinstance(value, str) else next(iter(value or ()), None)
            if first is not None:
                first_values.setdefault(name, first)
        subject = distinct[indices[row].as_py()].as_py()
        return Publish(subject, data[row].as_py(), first_values)

    priority = batch.column("priority").cast(pa.string()) if "priority" in names else None
    return Rows(distinct, indices, priority, headers.values, claim, publish)


def _data(batch: pa.RecordBatch) -> pa.Array:
    """BINARY: the payloads, null where there is none."""
    if "data" not in batch.schema.names:
        return pa.nulls(batch.num_rows, BINARY)
    return binary(batch.column("data"))


def _joined(*parts: pa.Array | None) -> pa.Array | None:
    given = [part for part in parts if part is not None]
    return None if not given else given[0] if len(given) == 1 else join(*given)
