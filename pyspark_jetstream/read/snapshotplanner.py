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

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from .. import subjects
from ..client.blocks import lines_of
from ..client.connection import Client
from ..client.info import Mark, StreamInfo
from ..client.jetstream import JetStream
from ..client.patience import Patience
from ..errors import ReadTimeoutError, SnapshotLossError
from ..fetch.assumptions import takes_all
from ..fetch.call import PAGE_BYTES, PAGE_MESSAGES, DirectCall
from ..fetch.dataloss import report_loss
from ..fetch.decoding.markers import Headers, purges
from ..fetch.decoding.rows import StoredBuilder, user_headers
from ..fetch.directcalls import DirectCalls
from ..fetch.directget import read_direct
from ..fetch.layout import DirectRead
from ..fetch.survey import check_past
from ..sanitize import get_logger
from ..values import Moment
from . import snapshotplan
from .lasts import LastOfEach
from .snapshotplan import LaterSubject, StreamLimits
from .subjectindex import Lookups, Point, Seen

logger = get_logger(__name__)

_TRIES: Final = 3
"""Plans that are made before what they lost is reported."""

_DELETED: Final = 10_000
"""Missing sequences of a stream that are still looked at one by one."""

_LOOKED_UP: Final = 100_000
"""Subjects that are looked up by name before the next ones are taken from their list."""

_NAMED: Final = 10_000
"""Subjects that an error names to a program."""

_VANISHED: Final = (
    "{} subjects were deleted, purged or expired while the snapshot as of sequence {} was planned;"
    " read again, or leave them out with failOnDataLoss=false"
)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The messages of a snapshot."""

    mark: Mark
    """The stream when it was planned."""
    sequence: int
    """The sequence that the plan is as of."""
    last: LastOfEach


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
    """Reason that an attempt does not hold what the stream held at the pin."""

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
    ) -> None:
        self._client = client
        self._stream = stream
        self._filters = tuple(filters)
        self._match = _any_of(self._filters)
        self._fail = fail_on_data_loss
        self._js = JetStream(client)
        self._calls = DirectCalls(client, stream)
        self._lookups = Lookups(self._js, self._calls)

    def take(self, up_to_sequence: int | None = None, up_to_time: Moment | None = None) -> Snapshot:
        """
        The plan as of a sequence, of a moment, or of now.

        Raises:
            OptionError: The bound lies in the future.
            SnapshotLossError: The stream no longer holds what it held then (`failOnDataLoss`).
            ReadTimeoutError: Nobody who is up to date answered within `requestTimeout`.
        """
        before = self._js.stream_info(self._stream)
        past = bound(self._js, before, up_to_sequence, up_to_time)
        for attempt in range(1, _TRIES + 1):
            index = self._find(before, past)
            after = self._js.stream_info(self._stream)
            loss = self._loss(index, before, after, past is not None and past < before.last_seq)
            if loss is None:
                break
            if attempt == _TRIES or not loss.passing:
                error = SnapshotLossError(self._stream, 0, loss.what, loss.subjects)
                report_loss(error, self._fail)
                break
            before = after
        return Snapshot(after.mark, index.pin, index.seen.last)

    # ── the messages ─────────────────────────────────────────────────────────────────────────

    def _find(self, info: StreamInfo, past: int | None) -> _Index:
        pin = info.last_seq if past is None else past
        if pin >= info.first_seq and info.messages:
            held = (
                info.messages * (pin - info.first_seq + 1) // (info.last_seq - info.first_seq + 1)
            )
            size = self._size(info)
            of_past = snapshotplan.past_cost(size, info.config.get("storage") == "memory")
            cost = snapshotplan.LOOKED_UP_COST if past is None else of_past
            delay_s = self._client.options.max_publish_delay_s
            if snapshotplan.choose_index(size, held, cost, delay_s) == "names":
                last, pages = self._js.listed(self._stream, self._filters)
                pin = last if past is None else past
                looked_up = self._looked_up(pages, Point(pin, info.replicas, of_past, held))
                if looked_up is not None:
                    logger.info("snapshot stream=%s as_of=%d by=names", self._stream, pin)
                    return _Index(pin, looked_up, by_range=False, whole=False)
        logger.info("snapshot stream=%s as_of=%d by=range", self._stream, pin)
        known = self._known(info) if past is None else None
        found = LastOfEach(None if takes_all(self._filters, info) else self._match)
        upto = DirectRead.whole(self._stream, max(0, info.first_seq - 1), pin)
        for batch in read_direct(self._client, upto, StoredBuilder()):
            found.add(batch)
        # Of the past it is only known how many sequences there were.
        held = info.messages if pin == info.last_seq else pin + 1 - info.origin
        return _Index(pin, Seen(found), by_range=True, whole=found.messages >= held, known=known)

    def _looked_up(self, pages: Iterable[Mapping[str, int]], point: Point) -> Seen | None:
        """The messages of a listing's subjects; None if a range has to be read for them."""
        names, seen = self._named(pages), Seen()
        if names is None:
            return None
        is_all = all(self._lookups.at(point, counts, seen) for counts in _parts(names))
        return seen if is_all else None

    @staticmethod
    def _named(pages: Iterable[Mapping[str, int]]) -> LastOfEach | None:
        """
        The subjects of a listing, each once; None if one is no UTF-8, which has no name in JSON
        that it could be looked up by.
        """
        names = LastOfEach(later="max")
        for page in pages:
            if any("\ufffd" in name for name in page):
                return None
            subjects = [name.encode() for name in page]
            names.put_later(subjects, list(page.values()), [False] * len(page))
        return names

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
        if takes_all(self._filters, info):
            return info.num_subjects
        matching = 0
        wild = [filter_ for filter_ in self._filters if not subjects.is_literal(filter_)]
        for message in self._js.next_messages(
            [(self._stream, {"seq": 1, "next_by_subj": filter_}) for filter_ in wild]
        ):
            matching += message.pending + 1 if message is not None else 0
        return min(info.num_subjects, matching + len(self._filters) - len(wild))

    # ── what is gone ─────────────────────────────────────────────────────────────────────────

    def _loss(
        self, index: _Index, before: StreamInfo, after: StreamInfo, past: bool
    ) -> _Loss | None:
        """Loss of the plan, compared with the stream at the pin."""
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
        gone, names = 0, list[str]()
        for stranger in self._strangers(index, after, past, replaced):
            if snapshotplan.past_is_gone(stranger, keeping, past):
                gone += 1
                names += [stranger.subject] if gone <= _NAMED else []
        if gone and (index.by_range or not self._is_whole(pin, after)):
            keeps = f"; it keeps {keeping.per_subject} a subject" if keeping.per_subject else ""
            return _Loss(
                f"{gone} subjects have messages beyond sequence {pin} only, and what they"
                f" were then, if anything, has left the stream{keeps}. Keep more, ask for a later"
                " point, or leave them out with failOnDataLoss=false",
                tuple(names),
                passing=not past,
            )
        if index.known is not None and replaced and is_kept:
            lost = set(index.known)
            for found in seen.last:
                lost.difference_update(map(subjects.readable, found["subject"].to_pylist()))
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
    ) -> Iterable[LaterSubject]:
        """The subjects with messages beyond the pin only, as far as they matter."""
        last = index.seen.last
        if index.by_range:
            if not (past or replaced):
                return []
            self._add_beyond(index.pin, after.last_seq, last)
            return (
                stranger
                for stranger in snapshotplan.later_subjects(last)
                if past or index.known is None or stranger.subject in index.known
            )
        if not replaced:
            return snapshotplan.later_subjects(last)
        # They may have more messages by now than when they were listed.
        strangers = {each.subject: each for each in snapshotplan.later_subjects(last)}
        for page in self._js.listed(self._stream, self._filters)[1] if strangers else ():
            for name in strangers.keys() & page.keys():
                messages = max(strangers[name].messages, page[name])
                strangers[name] = replace(strangers[name], messages=messages)
        return strangers.values()

    def _add_beyond(self, pin: int, end: int, last: LastOfEach) -> None:
        """Puts the messages beyond the pin to what was read up to there."""
        later = DirectRead.whole(self._stream, pin, end, headers=True)
        for batch in read_direct(self._client, later, StoredBuilder()):
            names, blocks = (batch.column(column).to_pylist() for column in ("subject", "stored"))
            _put_later(last, names, (user_headers(lines_of(block)) for block in blocks))
        # A subject that is written all the time may have been ahead of that. The answer that says
        # that nothing is pending was made in one go, so it cannot be ahead of that one.
        pending, patience = True, Patience(self._client.options.request_timeout_s)
        while pending and self._js.message_get(self._stream, seq=end + 1, next_by_subj=">"):
            if patience.over:
                raise ReadTimeoutError(
                    self._stream,
                    0,
                    f"its end was not reached within {patience.timeout_s:.0f}s (requestTimeout):"
                    f" whoever answers stands at sequence {end}, or writers are faster. Ask for the"
                    " snapshot while less is written",
                )
            call = DirectCall(seq=end + 1, batch=PAGE_MESSAGES, max_bytes=PAGE_BYTES)
            answer = self._calls.ask(call)
            for message in answer.found:
                end, pending = message.sequence, answer.ending.pending > 0
            if not answer.found:  # whoever answered lags
                patience.pause()
            names = [message.subject for message in answer.found]
            _put_later(last, names, (user_headers(message.lines) for message in answer.found))

    def _is_whole(self, pin: int, info: StreamInfo) -> bool:
        """Whether the stream holds every sequence up to the pin, as far as its leader says."""
        if info.first_seq > info.origin or info.num_deleted > _DELETED:
            return False
        return not info.num_deleted or min(self._js.deleted(self._stream)) > pin


def bound(
    js: JetStream, info: StreamInfo, up_to_sequence: int | None, up_to_time: Moment | None
) -> int | None:
    """
    The sequence that was asked for, None for the stream's end.

    A moment stands for the last sequence stored before it.

    Raises:
        OptionError: It lies in the future.
    """
    check_past(info, up_to_sequence, {"upToTime": up_to_time})
    if up_to_time is None:
        return up_to_sequence
    following = js.message_get(info.name, start_time=up_to_time.rfc3339(info.now))
    if following is not None and following.sequence == info.origin:
        logger.warning(
            "stream=%s: upToTime '%s' lies before its first message, so the snapshot has no rows",
            info.name, up_to_time.text,
        )  # fmt: skip
    # ADR-31 leaves it open; the server takes a message of that very moment for a later one.
    return following.sequence - 1 if following is not None else info.last_seq


def _put_later(last: LastOfEach, names: list[bytes], headers: Iterable[Headers | None]) -> None:
    """Puts a message beyond the pin of each of these subjects to what is known of them."""
    purged = [each is not None and purges(each) for each in headers]
    last.put_later(names, [1] * len(names), purged)


def _parts(names: LastOfEach) -> Iterator[dict[str, int]]:
    """Subjects of a listing with their messages, some at a time."""
    for table in names:
        for low in range(0, table.num_rows, _LOOKED_UP):
            part = table.slice(low, _LOOKED_UP)
            found = part["subject"].cast(pa.string()).to_pylist()
            yield dict(zip(found, part["later"].to_pylist(), strict=True))


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
