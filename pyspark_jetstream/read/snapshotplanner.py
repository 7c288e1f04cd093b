"""
The plan of a snapshot: the last message of every subject at one sequence, found on the driver.

The sequence (the pin) is fixed once, by the stream's leader. Then there are two ways to the
messages (`snapshotplan.choose_index`): *names* lists the subjects and looks them up
(`subjectindex`), *range* reads all that is at or below the pin and reduces it.

Messages may leave the stream meanwhile. Limits and purges take the oldest of a subject first, so
what they leave cannot pass for the last; a subject that they take whole and that was written again
is noticed as a *stranger*, which has messages beyond the pin only. A message that somebody deletes
may have been the last and leave an older one: where the stream tells that from its limits, the
plan is made again, so that the deletion comes before it. Likewise a plan as of now that lost a
subject; three such in a row are reported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

import pyarrow as pa

from .. import subjects
from ..client.blocks import lines_of
from ..client.connection import Client
from ..client.info import Mark, StreamInfo
from ..client.jetstream import JetStream
from ..errors import OptionError, SnapshotLossError
from ..fetch.call import PAGE_BYTES, PAGE_MESSAGES, DirectCall
from ..fetch.dataloss import lost
from ..fetch.decoding.markers import Headers, purges
from ..fetch.decoding.rows import StoredBuilder, Texts, user_headers
from ..fetch.directcalls import DirectCalls
from ..fetch.directget import DirectRead, read_direct
from ..sanitize import get_logger
from ..values import Moment
from . import snapshotplan
from .snapshotplan import LastOfEach, LaterSubject, StreamLimits
from .subjectindex import Lookups, Seen

__all__ = ["Snapshot", "Snapshots"]

logger = get_logger(__name__)

_TRIES: Final = 3
"""Plans that are made before what they lost is reported."""

_DELETED: Final = 10_000
"""Missing sequences of a stream that are still looked at one by one."""

_VANISHED: Final = (
    "{} subjects were deleted, purged or expired while the snapshot as of sequence {} was planned;"
    " read again, or leave them out with failOnDataLoss=false"
)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The messages of a snapshot."""

    stream: str
    mark: Mark | None
    """The stream when it was planned; None where nothing is to be read."""
    sequence: int
    """The sequence that the plan is as of."""
    plan: pa.Table
    """`subject` and `sequence`, by ascending sequence."""


@dataclass(frozen=True, slots=True)
class _Index:
    """The index that one attempt found."""

    pin: int
    seen: Seen
    by_range: bool
    whole: bool
    """Whether nothing at or below the pin can have left the stream before it was seen."""
    known: frozenset[str] | None = None
    """Subjects that were there at the pin, where a listing says so."""


@dataclass(frozen=True, slots=True)
class _Loss:
    """Why an attempt does not hold what the stream held at the pin."""

    what: str
    subjects: tuple[str, ...] = ()
    passing: bool = False
    """Whether another attempt may fare better."""


class Snapshots:
    """Plans the snapshots of one stream."""

    def __init__(
        self,
        client: Client,
        stream: str,
        filters: Sequence[str],
        fail_on_data_loss: bool,
        on_invalid_subject: str = "fail",
    ) -> None:
        self._client = client
        self._stream = stream
        self._filters = tuple(filters)
        self._match = _any_of(self._filters)
        self._fail = fail_on_data_loss
        self._on_invalid = on_invalid_subject
        self._js = JetStream(client)
        self._calls = DirectCalls(client, stream)
        self._lookups = Lookups(self._js, self._calls)

    def take(self, up_to_sequence: int | None = None, up_to_time: Moment | None = None) -> Snapshot:
        """
        The plan as of a sequence, of a moment, or of now.

        Raises:
            OptionError: The bound lies in the future.
            SnapshotLossError: The stream no longer holds what it held then (`failOnDataLoss`).
            SubjectDecodeError: A subject of it is no UTF-8 (`onInvalidSubject`).
            ReadTimeoutError: Nobody who is up to date answered within `requestTimeout`.
        """
        past = self.bound(up_to_sequence, up_to_time)
        before = self._js.stream_info(self._stream)
        for attempt in range(1, _TRIES + 1):
            index = self._find(before, past)
            after = self._js.stream_info(self._stream)
            loss = self._loss(index, before, after, past is not None and past < before.last_seq)
            if loss is None:
                break
            if attempt == _TRIES or not loss.passing:
                lost(SnapshotLossError(self._stream, loss.subjects, loss.what), self._fail)
                break
            before = after
        texts = Texts(self._stream, self._on_invalid)
        plan = snapshotplan.plan_of(index.seen.last.table(), texts)
        return Snapshot(self._stream, after.mark, index.pin, plan)

    def bound(
        self, up_to_sequence: int | None = None, up_to_time: Moment | None = None
    ) -> int | None:
        """
        The sequence that was asked for, None for the stream's end.

        A moment stands for the last sequence stored before it.

        Raises:
            OptionError: It lies in the future.
        """
        info = self._js.stream_info(self._stream)
        if up_to_sequence is not None and up_to_sequence > info.last_seq:
            raise OptionError(
                "upToSequence",
                f"{up_to_sequence} lies in the future: stream '{self._stream}' ends at"
                f" {info.last_seq}",
            )
        if up_to_time is None:
            return up_to_sequence
        # By the server's clock, which the messages' times are of.
        if up_to_time.resolve(info.now) > max(datetime.now(UTC), info.now):
            raise OptionError("upToTime", f"'{up_to_time.text}' lies in the future")
        following = self._js.message_get(self._stream, start_time=up_to_time.rfc3339(info.now))
        if following is not None and following[0] == info.origin:
            logger.warning(
                "stream=%s: upToTime '%s' lies before its first message, so the snapshot has no"
                " rows", self._stream, up_to_time.text,
            )  # fmt: skip
        # ADR-31 leaves it open; the server takes a message of that very moment for a later one.
        return following[0] - 1 if following is not None else info.last_seq

    # ── the messages ─────────────────────────────────────────────────────────────────────────

    def _find(self, info: StreamInfo, past: int | None) -> _Index:
        pin = info.last_seq if past is None else past
        if pin >= info.first_seq and info.messages:
            held = (
                info.messages * (pin - info.first_seq + 1) // (info.last_seq - info.first_seq + 1)
            )
            if snapshotplan.choose_index(self._size(info), held, past is not None) == "names":
                listed, counts = self._js.subject_counts(self._stream, self._filters)
                pin = listed if past is None else past
                # A subject that is no UTF-8 has no name in JSON that it could be looked up by.
                if not any("\ufffd" in name for name in counts):
                    logger.info("snapshot stream=%s as_of=%d by=names", self._stream, pin)
                    replicas = int(info.config.get("num_replicas") or 1)
                    seen = self._lookups.at(pin, counts, replicas)
                    return _Index(pin, seen, by_range=False, whole=False)
        logger.info("snapshot stream=%s as_of=%d by=range", self._stream, pin)
        known = self._known(info) if past is None else None
        last = LastOfEach(None if self._all_match(info) else self._match)
        upto = DirectRead.whole(self._stream, max(0, info.first_seq - 1), pin)
        for batch in read_direct(self._client, upto, None, builder=StoredBuilder()):
            last.add(batch)
        # Of the past it is only known how many sequences there were.
        held = info.messages if pin == info.last_seq else pin + 1 - info.origin
        return _Index(pin, Seen(last), by_range=True, whole=last.messages >= held, known=known)

    def _known(self, info: StreamInfo) -> frozenset[str] | None:
        """
        The subjects that match, where new ones could pass for replaced ones later and the list is
        short.
        """
        if (
            not StreamLimits.of(info.config).per_subject
            or self._size(info) > snapshotplan.LISTING_PAGE
        ):
            return None
        return frozenset(self._js.subject_counts(self._stream, self._filters)[1])

    def _size(self, info: StreamInfo) -> int:
        """At most how many subjects match."""
        if self._all_match(info):
            return info.num_subjects
        matching = 0
        wild = [filter_ for filter_ in self._filters if not subjects.is_literal(filter_)]
        for message in self._js.next_messages(
            [(self._stream, {"seq": 1, "next_by_subj": filter_}) for filter_ in wild]
        ):
            matching += message.pending + 1 if message is not None else 0
        return min(info.num_subjects, matching + len(self._filters) - len(wild))

    def _all_match(self, info: StreamInfo) -> bool:
        """Whether the stream holds nothing but subjects that match."""
        config = info.config
        foreign = config.get("mirror") or config.get("sources") or config.get("subject_transform")
        stored = [subjects.REST] if foreign else config.get("subjects") or [subjects.REST]
        return all(
            any(subjects.covers(filter_, subject) for filter_ in self._filters)
            for subject in stored
        )

    # ── what is gone ─────────────────────────────────────────────────────────────────────────

    def _loss(
        self, index: _Index, before: StreamInfo, after: StreamInfo, past: bool
    ) -> _Loss | None:
        """What the plan may lack of the stream as it was at the pin."""
        if index.whole:
            return None
        seen, pin, keeping = index.seen, index.pin, StreamLimits.of(after.config)
        # What expired while a plan of now was made did so before the snapshot.
        if seen.vanished and (past or not keeping.by_limits):
            return _Loss(
                _VANISHED.format(len(seen.vanished), pin),
                tuple(seen.vanished),
                passing=not past,
            )
        # From such a stream nothing leaves by itself: what it lacks was deleted or purged.
        is_kept = after.retention == "limits" and not keeping.by_limits and not past
        # Nor does a range miss what was purged up to the stream's first message: there is no gap.
        may_lack = index.by_range and is_kept
        if not keeping.per_subject and (may_lack or after.num_deleted > before.num_deleted):
            # With a limit per subject any new message may take one, the oldest of its subject.
            return _Loss(
                "messages were deleted whenever a snapshot was planned, and the last of a subject"
                " may have been among them; wait until that ends",
                passing=True,
            )
        replaced = keeping.per_subject > 0 and after.removed != before.removed
        strangers = self._strangers(index, after, past, replaced)
        names = [
            stranger.subject
            for stranger in strangers
            if snapshotplan.past_is_gone(stranger, keeping, past)
        ]
        if names and (index.by_range or not self._is_whole(pin, after)):
            keeps = f"; it keeps {keeping.per_subject} a subject" if keeping.per_subject else ""
            return _Loss(
                f"{len(names)} subjects have messages beyond sequence {pin} only, and what they"
                f" were then, if anything, has left the stream{keeps}. Keep more, ask for a later"
                " point, or leave them out with failOnDataLoss=false",
                tuple(names),
                passing=not past,
            )
        if index.known is not None and replaced and is_kept:
            there = seen.last.subjects() | {stranger.subject for stranger in strangers}
            lost = index.known - there
            if lost:
                return _Loss(_VANISHED.format(len(lost), pin), tuple(lost), passing=True)
        if past and pin < before.first_seq:
            return _Loss(
                f"nothing at or below sequence {pin} is left, it begins at {before.first_seq} now;"
                " ask for a later point, or go on with failOnDataLoss=false"
            )
        return None

    def _strangers(
        self, index: _Index, after: StreamInfo, past: bool, replaced: bool
    ) -> list[LaterSubject]:
        """The subjects with messages beyond the pin only, as far as they matter."""
        if index.by_range:
            if not (past or replaced):
                return []
            strangers = self._beyond(index.pin, after.last_seq, index.seen)
            return [
                stranger
                for stranger in strangers
                if past or index.known is None or stranger.subject in index.known
            ]
        strangers = index.seen.strangers
        if strangers and replaced:  # they may have more messages by now than when they were listed
            counts = self._js.subject_counts(self._stream, self._filters)[1]
            strangers = [
                replace(stranger, messages=max(stranger.messages, counts.get(stranger.subject, 0)))
                for stranger in strangers
            ]
        return strangers

    def _beyond(self, pin: int, end: int, seen: Seen) -> list[LaterSubject]:
        """The subjects with messages beyond the pin only, where all were read."""
        counts: dict[bytes, int] = {}
        purged: set[bytes] = set()

        def note(name: bytes, headers: Headers) -> None:
            counts[name] = counts.get(name, 0) + 1
            if headers is not None and purges(headers):
                purged.add(name)

        later = DirectRead.whole(self._stream, pin, end, headers=True)
        for batch in read_direct(self._client, later, None, builder=StoredBuilder()):
            names, blocks = (batch.column(column).to_pylist() for column in ("subject", "stored"))
            for name, block in zip(names, blocks, strict=True):
                note(name, user_headers(lines_of(block)))
        # A subject that is written all the time may have been ahead of that. The answer that says
        # that nothing is pending was made in one go, so it cannot be ahead of that one.
        last, pending = end, True
        while pending and self._js.message_get(self._stream, seq=last + 1, next_by_subj=">"):
            call = DirectCall(seq=last + 1, batch=PAGE_MESSAGES, max_bytes=PAGE_BYTES)
            answer = self._calls.ask(call)
            for message in answer.found:
                note(message.subject, user_headers(message.lines))
                last, pending = message.sequence, answer.pending > 0
        known = set(seen.last.table()["subject"].to_pylist())
        match = self._match
        return [
            LaterSubject(subjects.readable(name), count, name in purged)
            for name, count in counts.items()
            if name not in known and (match is None or match(subjects.raw(name)))
        ]

    def _is_whole(self, pin: int, info: StreamInfo) -> bool:
        """Whether the stream holds every sequence up to the pin, as far as its leader says."""
        if info.first_seq > info.origin or info.num_deleted > _DELETED:
            return False
        return not info.num_deleted or min(self._js.deleted(self._stream)) > pin


def _any_of(filters: Sequence[str]) -> Callable[[str], bool] | None:
    """Whether a subject matches one of the filters; None where all do."""
    if subjects.REST in filters:
        return None
    if all(map(subjects.is_literal, filters)):
        return frozenset(filters).__contains__
    matchers = [subjects.matcher(filter_) for filter_ in filters]
    if len(matchers) == 1:
        return matchers[0]
    return lambda subject: any(match(subject) for match in matchers)
