"""
Whether copies hold the messages of what feeds them, in its order.

What is read is compared in columns, by batched direct get: every message of every copy, and for
`content` of the feed, too. Checked of each message of a copy:

* it was copied, from this feed, and not published here;
* its sequence in the feed is above that of the message before it: so the copy has the order of the
  feed, and each subject has;
* its subject is what the feed's becomes, and belongs to this partition;
* with `content`: payload and headers are the feed's, but for headers of the server (`Nats-…`), of
  which it changes some, and for what is no header block (`blocks`); and no message is missing that
  the feed still has.

Both sides are compared up to one sequence of the feed, which all copies have reached; so writers
may go on. Messages that left the feed meanwhile are no fault.

Limits: the feed and all its copies are read side by side, which takes up to 12 MiB each.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from .. import subjects
from ..arrays import BINARY, binary, integers, join, scalar
from ..client.connection import Client
from ..client.jetstream import JetStream
from ..client.wire import HEADER_PREAMBLE as _PREAMBLE
from ..errors import CopyMismatchError
from ..fetch.decoding.rows import StoredBuilder
from ..fetch.directget import read_direct
from ..fetch.layout import DirectRead
from ..readstream.copies import SOURCE_HEADER, Copied, Copies, Feeding, Progress
from .partitionplan import Hop, PartitionPlan

_SOURCE: Final = (
    rf"{SOURCE_HEADER}: (?P<stream>\S+) (?P<sequence>\d+)"
    r"(?: \S+ \S+(?: (?P<subject>\S+)[^\r\n]*)?)?\r\n$"
)
"""
The server's line is the last, also behind a block that ends in the middle of a line. Servers before
2.12 do not say the subject.
"""

_SOURCES: Final = rf"(?:{SOURCE_HEADER}: [^\r\n]*\r\n)+$"
"""The lines of a copy, and of copies before it."""

_SERVERS_OWN: Final = r"(^|\r\n)Nats-[^\r\n]*"
_ASKED_AT_ONCE: Final = 500
_SHOWN_EVERY_S: Final = 1.0
_KNOWN_PAIRS: Final = 1_000_000

_REMEDY: Final = "delete the copies (--undo) and begin anew"


def check_hop(
    js: JetStream, plan: PartitionPlan, hop: Hop, content: bool, progress: Progress, stall_s: float
) -> None:
    """
    Checks all copies of one hop of the plan.

    Raises:
        CopyMismatchError: The first fault found, with stream and sequence.
        CopyStalledError: The copies did not reach what the feed held at the beginning.
    """
    feed = js.stream_info(hop.feed)
    asked = Copies(js)
    asked.settle(
        {n: Feeding(hop.feed, (f,)) for n, f in hop.copies.items()}, lambda _: None, stall_s
    )
    meter = _Meter(progress)
    ends = {name: asked.position(name, feed.last_seq) for name in hop.copies}
    for name, end in ends.items():
        meter.expect(name, end)
    copies = [_Copy(js, plan, hop, name, end, meter) for name, end in ends.items()]
    if not content:
        for copy in copies:
            for _ in copy.batches():
                pass
    else:
        meter.expect(hop.feed, feed.last_seq)
        _compare(js, hop, max(0, feed.first_seq - 1), feed.last_seq, copies, meter)
    meter.done()


def first_foreign(js: JetStream, stream: str) -> int | None:
    """The sequence of the first message of the stream that was not copied into it, if any."""
    for batch in _raw(js.client, stream, 0, js.stream_info(stream).last_seq):
        source = pc.extract_regex(batch["stored"], _SOURCE)
        if source.null_count:
            return int(batch["sequence"].filter(pc.is_null(source))[0].as_py())
    return None


class _Meter:
    """Tells how far each stream is, once a second and at the end."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._streams: dict[str, Copied] = {}
        self._due = time.monotonic() + _SHOWN_EVERY_S

    def expect(self, stream: str, end: int) -> None:
        self._streams[stream] = Copied(stream, 0, end, doing="verified")

    def at(self, stream: str, sequence: int) -> None:
        self._streams[stream] = replace(self._streams[stream], done=sequence)
        if time.monotonic() >= self._due:
            self._progress(tuple(self._streams.values()))
            self._due = time.monotonic() + _SHOWN_EVERY_S

    def done(self) -> None:
        self._progress([replace(each, done=each.end) for each in self._streams.values()])


def _raw(client: Client, stream: str, start: int, end: int) -> Iterator[pa.RecordBatch]:
    read = DirectRead.whole(stream, start, end, headers=True)
    return read_direct(client, read, StoredBuilder())


class _Copy:
    """One copy, read in its order and checked on the way."""

    def __init__(
        self, js: JetStream, plan: PartitionPlan, hop: Hop, name: str, end: int, meter: _Meter
    ) -> None:
        self.name = name
        self._client = js.client
        self._plan = plan
        self._hop = hop
        self._end = end
        self._meter = meter
        self._last = 0
        self._pairs: set[bytes] = set()
        self._number = plan.stream_names.index(name) if name in plan.stream_names else None
        self._coming = self.batches()
        self._ready: list[pa.RecordBatch] = []

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All of it, with the column `source`: the sequences in the feed."""
        for batch in _raw(self._client, self.name, 0, self._end):
            yield self._checked(batch)
            self._meter.at(self.name, batch["sequence"][-1].as_py())

    def upto(self, bound: int) -> list[pa.RecordBatch]:
        """Batches copied from sequences up to `bound` that were not taken before."""
        while not self._ready or self._ready[-1]["source"][-1].as_py() <= bound:
            if (batch := next(self._coming, None)) is None:
                break
            self._ready.append(batch)
        taken, left = [], []
        for batch in self._ready:
            mask = pc.less_equal(batch["source"], bound)
            taken.append(batch.filter(mask))
            left.append(batch.filter(pc.invert(mask)))
        self._ready = [batch for batch in left if batch.num_rows]
        return [batch for batch in taken if batch.num_rows]

    def _checked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        sources = pc.extract_regex(batch["stored"], _SOURCE)
        feed = pc.struct_field(sources, "stream")
        self._must(batch, pc.is_valid(sources), "is no copy: somebody published it here")
        of_feed = pc.equal(feed, pa.scalar(self._hop.feed.encode(), feed.type))
        self._must(batch, of_feed, f"was not copied from '{self._hop.feed}'")
        source = integers(pc.struct_field(sources, "sequence"))
        before = pa.concat_arrays([pa.array([self._last], pa.int64()), source[:-1]])
        above = pc.greater(source, before)
        self._must(batch, above, f"is out of the order of '{self._hop.feed}'", source, before)
        self._last = source[-1].as_py()
        self._check_subjects(batch, pc.struct_field(sources, "subject"))
        return batch.append_column("source", source)

    def _check_subjects(self, batch: pa.RecordBatch, origins: pa.Array) -> None:
        """Checks each subject by its one in the feed, which servers before 2.12 do not say."""
        pairs = join(binary(origins), scalar(" "), binary(batch["subject"]))
        for pair in pc.unique(pairs).to_pylist():
            if pair in self._pairs:
                continue
            origin, _, subject = pair.decode("utf-8", "surrogateescape").partition(" ")
            rule = self._hop.rule
            should = (rule.apply(origin) if rule is not None else origin) if origin else subject
            number = self._plan.partition_of(subject) if should == subject else None
            wrong = number is None or (self._number is not None and number != self._number)
            if wrong:
                self._must(
                    batch,
                    pc.not_equal(pairs, scalar(pair)),
                    f"has subject '{subject}', which '{origin}' does not become in this partition",
                )
            if len(self._pairs) < _KNOWN_PAIRS:
                self._pairs.add(pair)

    def _must(
        self,
        batch: pa.RecordBatch,
        good: pa.Array,
        fault: str,
        source: pa.Array | None = None,
        before: pa.Array | None = None,
    ) -> None:
        if pc.all(good, min_count=0).as_py():
            return
        row = pc.index(good, False).as_py()
        if source is not None and before is not None:
            fault += f", copied from {source[row].as_py()} after {before[row].as_py()}"
        raise CopyMismatchError(
            self.name, f"sequence {batch['sequence'][row].as_py()} {fault}; {_REMEDY}"
        )


def _compare(
    js: JetStream, hop: Hop, start: int, end: int, copies: Sequence[_Copy], meter: _Meter
) -> None:
    """Every message of the feed in `(start, end]` against its copy."""
    filters = [subjects.matcher(filter_) for filter_ in hop.copies.values()]
    known: dict[bytes, bytes | None] = {}

    def becomes(subject: bytes) -> bytes | None:
        if subject not in known:
            if len(known) >= _KNOWN_PAIRS:
                known.clear()
            text = subject.decode("utf-8", "surrogateescape")
            mine = any(matches(text) for matches in filters)
            mapped = hop.rule.apply(text) if mine and hop.rule is not None else text
            known[subject] = mapped.encode("utf-8", "surrogateescape") if mine else None
        return known[subject]

    for batch in _raw(js.client, hop.feed, start, end):
        upto = batch["sequence"][-1].as_py()
        encoded = binary(batch["subject"]).dictionary_encode()
        mapped = pa.array(map(becomes, encoded.dictionary.to_pylist()), BINARY)
        wanted = batch.append_column("becomes", mapped.take(encoded.indices))
        _compare_part(js, hop, wanted.filter(pc.is_valid(wanted["becomes"])), copies, upto)
        meter.at(hop.feed, upto)
    for copy in copies:
        copy.upto(end)  # what the feed has lost meanwhile is still held to its order


def _compare_part(
    js: JetStream, hop: Hop, feed: pa.RecordBatch, copies: Sequence[_Copy], upto: int
) -> None:
    parts = [(copy.name, batch) for copy in copies for batch in copy.upto(upto)]
    if not feed.num_rows:
        return
    fields = ("source", "sequence", "subject", "data", "stored")
    columns: dict[str, Any] = {
        name: pa.chunked_array([batch[name] for _, batch in parts]) for name in fields if parts
    }
    if not parts:
        _check_missing(js, hop, feed["sequence"].to_pylist())
        return
    names = pa.chunked_array([pa.repeat(pa.scalar(n), batch.num_rows) for n, batch in parts])
    at = pc.index_in(feed["sequence"], value_set=columns["source"].combine_chunks())
    there = pc.is_valid(at)
    _check_missing(js, hop, feed["sequence"].filter(pc.invert(there)).to_pylist())
    feed, at = feed.filter(there), at.filter(there)
    for what, mine, theirs in (
        ("subject", feed["becomes"], binary(columns["subject"].take(at))),
        ("payload", feed["data"], columns["data"].take(at)),
        ("headers", _plain(feed["stored"]), _plain(columns["stored"].take(at))),
    ):
        same = pc.equal(mine, theirs)
        if not pc.all(same, min_count=0).as_py():
            row = pc.index(same, False).as_py()
            raise CopyMismatchError(
                names.take(at)[row].as_py(),
                f"sequence {columns['sequence'].take(at)[row].as_py()} has another {what} than"
                f" sequence {feed['sequence'][row].as_py()} of '{hop.feed}'; {_REMEDY}",
            )


def _plain(stored: Any) -> Any:
    """Header lines without those that begin with `Nats-`; what is no header block has none."""
    left = pc.replace_substring_regex(stored, _SOURCES, "")
    begins = pc.or_(
        pc.starts_with(left, _PREAMBLE + b"\r\n"), pc.starts_with(left, _PREAMBLE + b" ")
    )
    left = pc.if_else(pc.and_(begins, pc.ends_with(left, b"\r\n")), left, _PREAMBLE + b"\r\n")
    left = pc.replace_substring_regex(left, _SERVERS_OWN, "")
    return pc.replace_substring_regex(left, r"^\r\n", "")


def _check_missing(js: JetStream, hop: Hop, missing: Sequence[int]) -> None:
    """No copy has these; that is a fault where the feed still does."""
    for at in range(0, len(missing), _ASKED_AT_ONCE):
        some = missing[at : at + _ASKED_AT_ONCE]
        for message in js.messages(hop.feed, [{"seq": sequence} for sequence in some]):
            if message is not None:
                copy = next(
                    n for n, f in hop.copies.items() if subjects.matches(f, message.subject)
                )
                raise CopyMismatchError(
                    copy,
                    f"lacks sequence {message.sequence} of '{hop.feed}', '{message.subject}';"
                    f" {_REMEDY}",
                )
