"""
The driver's questions to the server before it plans: streams, positions, counts, cuts.

Every question has a fallback for a stream that is not read by direct get (`allow_direct: false`, or
`directBelow=0`): sequences are then taken for messages, which is an upper bound.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain
from typing import Any, Final

from .. import subjects
from ..client.connection import Client
from ..client.info import ConsumerInfo, Found, StreamInfo
from ..client.jetstream import STREAM_NOT_FOUND, JetStream, behind
from ..errors import JetStreamError, OptionError, PermissionsError, StreamNotFoundError
from ..sanitize import get_logger
from ..values import EARLIEST, LATEST, Moment, Starting
from .layout import Layout, Span, resolve_layout, stored_keys, stream_names
from .options import Several, StreamOptions

logger = get_logger(__name__)

_ASKED: Final = 64
"""Named streams up to which each is asked for; more are listed, with all others of the account."""

_TOGETHER: Final = 16
"""Messages that a leader is asked for at one time; they come whole."""

_TRIES: Final = 8
"""Counts by which the end of a batch is found at the most."""

_SECOND_S: Final = 3.0
"""Longest time between the answers to one request."""


@dataclass(frozen=True, slots=True)
class ServerView:
    """A query's streams, and some of its consumers, as the server showed them at one moment."""

    streams: Mapping[str, StreamInfo]
    """By name."""
    consumers: Mapping[int, ConsumerInfo | None]
    """By partition those that were looked at; None for one that is not there."""
    at: float
    """That moment, by `time.monotonic`."""


class _StreamInfos(dict[str, StreamInfo]):
    """Streams by name; what was deleted just now is no key."""

    def __missing__(self, name: str) -> StreamInfo:
        raise StreamNotFoundError(f"STREAM.INFO.{name}", 404, STREAM_NOT_FOUND, "deleted")


class Survey:
    """Answers about the streams of one query."""

    def __init__(self, client: Client, options: StreamOptions) -> None:
        self.js = JetStream(client)
        self.known: tuple[str, ...] = ()
        """Streams of several that a query has read: each is asked for that a listing leaves out."""
        self._options = options
        self._layout: Layout | None = None

    @property
    def layout(self) -> Layout:
        """
        The query's partitions, once options and the streams' configuration agree. The first time it
        asks the server for the streams.

        Raises:
            OptionError: They do not, or no subject of the stream is one to read.
            StreamNotFoundError: A stream is missing.
        """
        if self._layout is None:
            if self._options.several is not None:
                self._layout = self._first_layout(self._options.several)
            elif "{partition}" in self._options.stream:
                first = self.info_of(stream_names(self._options.stream, 1)[0])
                layout = resolve_layout(self._options, {first.name: first.config})
                self._check_next(stream_names(self._options.stream, len(layout) + 1)[-1])
                self._layout = layout
            else:
                info = self.info_of(self._options.stream)
                given = self._options
                filters = stored_keys(given.bucket, info.is_filled, given.subjects)
                layout = resolve_layout(replace(given, subjects=filters), {info.name: info.config})
                if self._options.partition_subject is not None:
                    whole = subjects.partition_wildcard(self._options.partition_subject)
                    check_subjects(self.js, info, "partitionSubject", [whole])
                check_subjects(self.js, info, "bucket" if given.bucket else "subject", filters)
                self._layout = layout
            check_answers(self.js, self._layout.streams[0])
        return self._layout

    def info_of(self, name: str) -> StreamInfo:
        """
        The stream that an option names.

        Raises:
            StreamNotFoundError: It is missing; says which name is alike.
        """
        try:
            return self.js.stream_info(name)
        except StreamNotFoundError as error:
            try:
                names = self.js.stream_names()
            except JetStreamError:  # as where the user may not ask
                names = []
            raise error.near(names) from None

    def _first_layout(self, several: Several) -> Layout:
        infos = self._several(several)
        for name in several.names:
            if name not in infos and self._options.fail_on_data_loss:
                self.info_of(name)  # raises that there is none
        if not infos:
            raise OptionError(several.option, f"there is no stream of such a name: '{several}'")
        return Layout.of_streams(infos)

    def _several(self, several: Several) -> dict[str, StreamInfo]:
        """The streams there are now: by pages of all, or where they are few each is asked for."""
        known = list(several.names)
        listed: dict[str, StreamInfo | None] = {}
        if not known or len(known) > _ASKED:
            listed = self.js.streams_listed(several.takes())
            known = known or list(self.known)
        infos = {name: info for name, info in listed.items() if info is not None}
        # One that a listing leaves out may be there.
        asked = [name for name in dict.fromkeys([*known, *listed]) if name not in infos]
        if asked:
            infos |= {i.name: i for i in self.js.stream_infos_there(asked) if i is not None}
        order = several.names or sorted(infos)
        return _StreamInfos({name: infos[name] for name in order if name in infos})

    def _check_next(self, name: str) -> None:
        """
        Whether a layout of one stream a partition ends before the stream with this name.

        Raises:
            OptionError: There is one, and `failOnDataLoss` is on.
        """
        try:
            (found,) = self.js.stream_infos_there([name])
        except PermissionsError:
            return  # it is none that this user may read
        if found is not None:
            self._left_out(
                f"the streams with smaller numbers are read, and there is a stream '{name}', too:"
                " give the number of all of them; with failOnDataLoss=false it is left out"
            )

    def _left_out(self, why: str) -> None:
        """Messages belong to no partition of the layout (`failOnDataLoss`)."""
        error = OptionError("partitions", why)
        if self._options.fail_on_data_loss:
            raise error
        logger.warning("not read, as failOnDataLoss=false says: %s", error)

    def has_begun(self, info: StreamInfo) -> bool:
        """Whether a stream that came has reached the sequence, or the moment, that it begins at."""
        first = self._options.starting.of(0, info.name)
        is_there = not isinstance(first, int) or first <= info.last_seq + 1
        return is_there and not self.is_early(info)

    def is_early(self, info: StreamInfo) -> bool:
        """Whether a stream begins at a moment that its server's clock has not reached."""
        moment = self._options.starting.moment
        return moment is not None and moment.resolve(info.now) > info.now

    def streams(self) -> Mapping[str, StreamInfo]:
        """Configuration and state of every stream, now, by name."""
        return self.look({}).streams

    def look(self, consumers: Mapping[int, tuple[str, str]]) -> ServerView:
        """The streams and, by partition, these (stream, consumer), in one round trip."""
        if self._options.several is not None:
            return ServerView(self._several(self._options.several), {}, time.monotonic())
        names = list(self.layout.streams)
        infos, seen = self.js.look(names, list(consumers.values()))
        streams = dict(zip(names, infos, strict=True))
        return ServerView(streams, dict(zip(consumers, seen, strict=True)), time.monotonic())

    def positions(
        self,
        where: Starting,
        infos: Mapping[str, StreamInfo],
        option: str,
        ending: bool = False,
        of: Layout | None = None,
    ) -> tuple[int, ...]:
        """
        A start or an end by partition: the last sequence before the first to read, or the last to
        read.

        Args:
            of: these partitions; default: the query's.

        Raises:
            OptionError: A sequence lies beyond the end of its stream.
        """
        by_time: dict[str, int] = {}
        positions = []
        layout = of if of is not None else self.layout
        for partition in layout:
            info = infos[partition.stream]
            word = where.of(partition.index, partition.stream)
            if (moment := where.moment) is not None:
                if partition.stream not in by_time:
                    text = moment.rfc3339(info.now)
                    by_time[partition.stream] = self._before(partition.stream, info, text)
                positions.append(by_time[partition.stream])
            elif word == EARLIEST:
                positions.append(max(0, info.first_seq - 1))
            elif word == LATEST:
                positions.append(info.last_seq)
            else:
                sequence = int(word)
                if sequence > info.last_seq + (0 if ending else 1):
                    raise OptionError(
                        option,
                        f"partition {layout.within(partition.index)[1]} names sequence {sequence},"
                        f" but stream '{info.name}' ends at {info.last_seq}",
                    )
                positions.append(sequence if ending else max(0, sequence - 1))
        for index in where.sequences:
            if index >= len(positions):
                raise OptionError(option, f"partition {index} is none of 0 to {len(positions) - 1}")
        return tuple(positions)

    def counts(self, spans: Sequence[Span], infos: Mapping[str, StreamInfo]) -> list[int | None]:
        """Messages in each span, by the server's own count; None where it cannot tell."""
        counts: list[int | None] = [
            _known(span, info := infos[span.stream], self.counts_exactly(info)) for span in spans
        ]
        open_ = [place for place, count in enumerate(counts) if count is None]
        asked = [place for place in open_ if self.counts_exactly(infos[spans[place].stream])]
        starts = [_behind(spans[place], spans[place].start) for place in asked]
        ends = [_behind(spans[place], spans[place].end) for place in asked]
        found: list[Found | None] = []
        where = {(spans[place].stream, spans[place].end) for place in asked}
        if len(where) == 1:
            ((stream, end),) = where
            if end >= infos[stream].last_seq:
                # What is behind the starts is asked first: if the leader has nothing behind the end
                # then, that is all theirs, and one question has stood for all their ends.
                found = self.js.next_messages(starts)
                if self.js.message_get(stream, seq=end + 1, next_by_subj=subjects.REST) is None:
                    found += [None] * len(ends)
        if len(found) < len(starts) + len(ends):
            found = self.js.next_messages([*starts, *ends])
        for place, first, beyond in zip(asked, found, found[len(asked) :], strict=False):
            counts[place] = _counted(spans[place], first, beyond)
        doubtful = [place for place in open_ if counts[place] is None]
        empty = self._empty([spans[place] for place in doubtful])
        for place, is_empty in zip(doubtful, empty, strict=True):
            if is_empty:
                counts[place] = 0
        return counts

    def counts_exactly(self, info: StreamInfo) -> bool:
        """Whether the stream's messages are counted: by direct gets, where it is read by any."""
        return info.allow_direct and self._options.direct_below > 0

    def sums(
        self,
        stream: str,
        filters: Sequence[str | None],
        ranges: Sequence[tuple[int, int]],
        infos: Mapping[str, StreamInfo],
    ) -> list[int | None]:
        """Messages of each `(start, end]` that match one of the filters; None as for `counts`."""
        spans = [Span(stream, filter_, *range_) for range_ in ranges for filter_ in filters]
        counts = self.counts(spans, infos)
        parts = [counts[at : at + len(filters)] for at in range(0, len(counts), len(filters))]
        return [total(part) for part in parts]

    def check_coverage(self, infos: Mapping[str, StreamInfo]) -> None:
        """
        Whether the layout leaves out messages that belong to a partition.

        Where the counts of the partitions do not add up, the leader lists the subjects. A layout
        that options name may stand beside other subjects: those outside of the template are none
        of its business, those without a number in the partition's place are a warning. One that was
        read off the stream must hold all of it.

        Raises:
            OptionError: It does, and `failOnDataLoss` is on.
        """
        layout, template = self.layout, self.layout.partition_subject
        if template is None:
            return
        info = infos[layout.streams[0]]
        is_named = self._options.partition_subject or self._options.partitions
        all_ = layout.union_filter if is_named else None
        if self.counts_exactly(info):
            spans = [
                Span(info.name, of, 0, info.last_seq) for of in (all_, *(p.filter for p in layout))
            ]
            total, *parts = self.counts(spans, infos)
            if (total or 0) <= sum(part or 0 for part in parts):
                return
        classify, at = layout.classifier(), subjects.partition_token(template)
        assert classify is not None
        beyond: dict[str, int] = {}
        strays, stray = 0, ""
        _, pages = self.js.listed(info.name, [all_ or subjects.REST])
        for subject, count in chain.from_iterable(page.items() for page in pages):
            if classify(subject) is not None:
                continue
            if not is_named or subject.split(".")[at].isdigit():
                beyond[subject] = count
            else:
                strays, stray = strays + count, stray or subject
        if strays:
            logger.warning(
                "stream=%s: no partition reads %d messages, the first on '%s', because their"
                " subjects have no partition's number in its place. Publish them with one, or set"
                " subject to read all",
                info.name, strays, stray,
            )  # fmt: skip
        if beyond:
            self._left_out(
                f"the query reads {len(layout)} partitions of stream '{info.name}', which holds"
                f" {sum(beyond.values())} messages outside of them, the first on '{min(beyond)}',"
                f" on {len(beyond)} subjects; give the right number, or name what to read with"
                " partitions and partitionSubject, or subject; with failOnDataLoss=false they are"
                " left out"
            )

    def cut(self, span: Span, there: int, wanted: int, infos: Mapping[str, StreamInfo]) -> int:
        """
        The sequence up to which about `wanted` of the `there` messages of a span lie: never more
        than are wanted where the server can count, but at least one.
        """
        low, low_count, high, high_count = span.start, 0, span.end, there
        enough = wanted - wanted // 10
        for _ in range(_TRIES):
            if high - low <= 1 or low_count >= enough:
                break
            guess = next_cut(low, low_count, high, high_count, wanted)
            if not self.counts_exactly(infos[span.stream]):
                return guess
            count = self.counts([replace(span, end=guess)], infos)[0] or 0
            if count > wanted:
                high, high_count = guess, count
            else:
                low, low_count = guess, count
        if low_count:
            return low
        (first,) = self.js.next_messages([_behind(span, span.start)])
        return min(first.sequence, span.end) if first is not None else span.end

    def _empty(self, spans: Sequence[Span]) -> list[bool]:
        """
        Whether the leader of its stream has nothing in a span.

        Direct gets may be answered by a replica or a mirror that lags; a task that is left out
        because of one would lose messages.
        """
        empty = [span.start >= span.end for span in spans]
        asked = [place for place, is_empty in enumerate(empty) if not is_empty]
        for low in range(0, len(asked), _TOGETHER):
            places = asked[low : low + _TOGETHER]
            queries = [_behind(spans[place], spans[place].start) for place in places]
            found = self.js.messages_of([(name, {"next_by_subj": ">"} | q) for name, q in queries])
            for place, following in zip(places, found, strict=True):
                empty[place] = following is None or following.sequence > spans[place].end
        return empty

    def before(self, moment: datetime, infos: Mapping[str, StreamInfo]) -> dict[str, int]:
        """The last sequence of each stream that was stored before a moment."""
        text = Moment("", absolute=moment).rfc3339(moment)
        return {name: self._before(name, info, text) for name, info in infos.items()}

    def _before(self, stream: str, info: StreamInfo, moment: str) -> int:
        """The last sequence stored before an RFC 3339 time."""
        first = self.js.message_get(stream, start_time=moment)
        return first.sequence - 1 if first is not None else info.last_seq


def next_cut(low: int, low_count: int, high: int, high_count: int, wanted: int) -> int:
    """
    The sequence to try next when `wanted` messages are to be cut off.

    The answer lies in `low < cut < high` where that leaves room; the number of messages up to
    `low` is `low_count` <= wanted, up to `high` it is `high_count` > wanted. By density, since
    messages lie evenly enough; the caller asks the server for the count there and calls again.
    """
    span, messages = high - low, high_count - low_count
    guess = low + span * (wanted - low_count) // max(1, messages)
    return min(max(guess, low + 1), max(low + 1, high - 1))


def total(counts: Sequence[int | None]) -> int | None:
    """The sum of the counts that are known; None where none is."""
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _known(span: Span, info: StreamInfo, exactly: bool) -> int | None:
    """
    Messages of a span by the stream's state alone; None if that does not tell. Where nothing is
    counted `exactly` there is nothing better than an upper bound.
    """
    if span.start >= span.end:
        return 0
    gapless = not info.num_deleted and span.end <= info.last_seq
    if span.filter is not None or (exactly and not gapless):
        return None
    return max(0, span.end - max(span.start, info.first_seq - 1))


def _behind(span: Span, sequence: int) -> tuple[str, dict[str, Any]]:
    """Asks for the first message of the span's filter behind this sequence."""
    return span.stream, behind(sequence, span.filter)


def _counted(span: Span, first: Found | None, beyond: Found | None) -> int | None:
    """
    Messages from the first one behind a span's start to the first behind its end; None if that
    seems to be nothing, by a replica that may lag.
    """
    if first is None:
        return 0  # says the leader
    if first.sequence > span.end:
        return None
    return max(1, first.pending + 1 - (beyond.pending + 1 if beyond is not None else 0))


def check_direct(info: StreamInfo) -> None:
    """
    Raises:
        OptionError: Direct get is off.
    """
    if not info.allow_direct:
        raise OptionError(
            "stream",
            f"'{info.name}' has direct get off; set allow_direct on it"
            f" (`nats stream edit {info.name} --allow-direct`)",
        )


def check_answers(js: JetStream, stream: str) -> None:
    """
    Raises:
        JetStreamError: Of two answers that were due only the first came, twice.
    """
    connection, asked = js.client.connection, f"{js.prefix}.DIRECT.GET.{stream}"
    try:
        for _ in range(2):
            if connection.request(asked, b'{"seq":1,"batch":1}', _SECOND_S).status:
                return  # a stream without a message
            if connection.next_frame(time.monotonic() + _SECOND_S) is not None:
                return
    except JetStreamError:  # as where the user may not ask: who reads says so
        return
    raise JetStreamError(
        f"of several answers about stream '{stream}' only the first comes: JetStream's API is"
        " imported, and its export takes one. Give the export `response_type: stream`"
    )


def check_past(
    info: StreamInfo, up_to_sequence: int | None, moments: Mapping[str, Moment | None]
) -> None:
    """
    Args:
        moments: by options; they count by the server's clock, which the messages' times are of.

    Raises:
        OptionError: One lies in the future.
    """
    if up_to_sequence is not None and up_to_sequence > info.last_seq:
        raise OptionError(
            "upToSequence",
            f"{up_to_sequence} lies in the future: stream '{info.name}' ends at {info.last_seq}",
        )
    for option, moment in moments.items():
        if moment is not None and moment.resolve(info.now) > max(datetime.now(UTC), info.now):
            raise OptionError(option, f"'{moment.text}' lies in the future")


def check_subjects(js: JetStream, info: StreamInfo, option: str, filters: Sequence[str]) -> None:
    """
    Whether each filter to read by can match: a subject that the stream takes, or has.

    Raises:
        OptionError: One cannot. Of a stream that is filled from others, or changes subjects, that
            cannot be told; then it is a warning.
    """
    taken: list[str] = info.config.get("subjects") or []
    others = [f for f in filters if not any(subjects.overlaps(f, subject) for subject in taken)]
    # What matches may have been stored before the stream's subjects were others.
    found = js.messages_of([(info.name, {"seq": 1, "next_by_subj": f}) for f in others])
    if all(found):
        return
    some = f"{', '.join(taken[:3])}{', …' if len(taken) > 3 else ''}"
    error = OptionError(
        option,
        f"'{others[found.index(None)]}' matches no message of stream '{info.name}', which takes"
        f" {some or 'none by itself'}; write the filter by the subjects that are stored (`nats"
        f" stream subjects {info.name}`), or leave it out to read them all",
    )
    if not info.is_filled:
        raise error
    logger.warning("nothing is read until a message matches: %s", error)
