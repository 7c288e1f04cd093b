"""
Direct gets of single messages and small batches: every call of ADR-31, answered by its stream.

    with DirectCalls.open({"servers": "nats://127.0.0.1:4222"}, "KV_USERS") as users:
        users.last("$KV.USERS.1234.name")
        users.multi_last(["$KV.USERS.1234.>"], up_to_sequence=3)

Whoever of the stream's replicas and mirrors is nearest answers, and may lag. What is handed on
here:

* messages of the stream itself, which each names (`Nats-Stream`);
* the leader's word (STREAM.MSG.GET) where a mirror has answered, and for "no such message". The
  exception is the subject-appended form of users who are not allowed to ask.

A `multi_last` that a mirror has answered is asked for again, until the stream answers itself.

A message may still be older than the leader's last of its subject (ADR-31, "A note on
read-after-write coherency"); a snapshot (`read.snapshotread`) is checked against the leader.

| status | becomes |
|---|---|
| none | a message |
| 204 | the end of a batch |
| 404 | nothing: an empty result |
| 408, 500 | `ApiError` |
| 413 | `TooManySubjectsError` |
| 503 | `ReadError` where direct get is off, `StreamNotFoundError`, else it is asked again |

Ranges of a stream are read by `directget`, which is faster for many messages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import pyarrow as pa

from .. import subjects, values
from ..client import wire
from ..client.blocks import direct
from ..client.connection import Client, borrow
from ..client.info import Found, found_of
from ..client.jetstream import JetStream
from ..client.options import parse_connection
from ..client.patience import Patience
from ..errors import (
    ApiError,
    JetStreamError,
    NotConnectedError,
    PermissionsError,
    ProtocolError,
    ReadTimeoutError,
    RequestTimeoutError,
    TooManySubjectsError,
)
from ..option import parsed
from ..sanitize import get_logger
from ..values import stream_name
from .call import MAX_MATCHES, PAGE_BYTES, PAGE_MESSAGES, DirectCall
from .decoding.replies import Columns
from .decoding.rows import RowBuilder
from .gets import LEADERS, Ending, ForeignAnswerError, Gets, check_on, of_leader
from .pace import FAR_S, appetite_of

logger = get_logger(__name__)

_TOGETHER: Final = 500
_TOGETHER_FAR: Final = 10_000
"""Requests for single messages that are under way at one time, at the most; from far away."""

_BYTES_TOGETHER: Final = 24 << 20
"""Bytes of their answers at the most: the server cuts off a reader that is 64 MiB behind."""

_AGAIN_S: Final = 0.001
_AGAIN_AT_MOST_S: Final = 0.02
"""Pauses before whoever answers is asked again: another may, and a replica lags by milliseconds."""


class Page(NamedTuple):
    """Messages of one request, in the order of their sequences."""

    found: list[Found]
    ending: Ending
    """Its code is 204 at a batch's end, 404 where there was nothing."""

    def is_as_of(self, sequence: int) -> bool:
        """
        Whether whoever answered had come to this sequence, where that shows: not if there was
        nothing.
        """
        up_to = self.ending.up_to
        return up_to is None or up_to >= sequence


class Message(NamedTuple):
    """A stored message."""

    subject: str
    data: bytes
    sequence: int
    timestamp: datetime
    headers: list[tuple[str, list[str]]] | None


class DirectCalls:
    """
    The direct gets of one stream. Not safe for threads.

    Arguments are read as the options of a read are: sequences and counts are above zero, times are
    RFC 3339 with a zone, or relative as `-10m`. What is none of these is a `ValueError` that names
    the request's field, before anything is sent.
    """

    def __init__(self, client: Client, stream: str) -> None:
        self.stream = stream
        self._largest = 0
        """Bytes of the largest message so far."""
        self._client = client
        self._appetite = appetite_of(client.options)
        self._js = JetStream(client)
        self._may_ask = True
        """Whether the user is not known to be forbidden to ask the leader."""

    @classmethod
    @contextmanager
    def open(cls, options: Mapping[str, str], stream: str) -> Iterator[DirectCalls]:
        """
        With a connection of its own; `options` are those of a read that concern it.

        Raises:
            OptionError: A mistake in them.
            UnsupportedServerError: The server is too old.
        """
        name = parsed("stream", stream_name, stream)
        with borrow(parse_connection(options), at_start=True) as client:
            yield cls(client, name)

    def __repr__(self) -> str:
        return f"<DirectCalls of {self.stream}>"

    # ── the calls ────────────────────────────────────────────────────────────────────────────

    def message(self, sequence: int) -> Message | None:
        """The message with this sequence (`seq`)."""
        return self._one(_call(seq=sequence))

    def last(self, subject: str, appended: bool = True) -> Message | None:
        """
        The last message of a subject or filter (`last_by_subj`).

        By default the request's own subject names it, so that a user who may read only some
        subjects can be given just these.
        """
        return self._one(_call(last_by_subj=subject, appended=appended))

    def next(
        self, subject: str, sequence: int | None = None, start_time: str | None = None
    ) -> Message | None:
        """The first message of a subject or filter, at or after a sequence or an RFC 3339 time."""
        return self._one(_call(next_by_subj=subject, seq=sequence, start_time=start_time))

    def first_since(self, start_time: str) -> Message | None:
        """The first message that is not older than an RFC 3339 time (`start_time`)."""
        return self._one(_call(start_time=start_time))

    def batch(
        self,
        count: int,
        subject: str | None = None,
        sequence: int | None = None,
        start_time: str | None = None,
        max_bytes: int | None = None,
    ) -> Iterator[Message]:
        """
        Up to `count` messages, of a filter or of all subjects, from a sequence or time on.

        `max_bytes` ends it at the message that reaches so many.
        """
        return self.messages(
            _call(
                batch=count,
                next_by_subj=subject,
                seq=sequence,
                start_time=start_time,
                max_bytes=max_bytes,
            )
        )

    def multi_last(
        self,
        subjects: Sequence[str],
        up_to_sequence: int | None = None,
        up_to_time: str | None = None,
        batch: int | None = None,
    ) -> list[Message]:
        """
        The last message of every subject that matches, as of one point, by ascending sequence.

        `up_to_sequence` is included, `up_to_time` is not. A sequence that the stream has not
        reached yet stands for its end.

        Raises:
            TooManySubjectsError: More than 1,024 subjects match.
        """
        return list(
            self.messages(
                _call(
                    multi_last=subjects,
                    up_to_seq=up_to_sequence,
                    up_to_time=up_to_time,
                    batch=batch,
                )
            )
        )

    def messages(self, call: DirectCall) -> Iterator[Message]:
        """Whatever the call brings."""
        builder = RowBuilder(self.stream, include_headers=True)
        for page in self.pages(call):
            for row in record_batch(builder, page).to_pylist():
                yield Message(**{name: row[name] for name in Message._fields})

    def _one(self, call: DirectCall) -> Message | None:
        return next(self.messages(call), None)

    # ── as they came ─────────────────────────────────────────────────────────────────────────

    def pages(self, call: DirectCall) -> Iterator[list[Found]]:
        """
        The call's messages, a request's worth at a time; a long batch takes several.
        """
        if not call.batched:
            message = self.each([call])[0]
            if message is not None:
                yield [message]
            return
        left, left_bytes = call.batch, call.max_bytes
        patience = self._patience()
        while True:
            answer = self.ask(replace(call, batch=left, max_bytes=left_bytes))
            if answer.found:
                yield answer.found
                patience.progress(answer.found[-1].sequence)
                call = call.behind(answer.found[-1].sequence, answer.ending.up_to)
                if left is not None:
                    left -= len(answer.found)
                if left_bytes is not None:
                    left_bytes -= sum(taken.stored_bytes for taken in answer.found)
            if left == 0 or (left_bytes is not None and left_bytes <= 0):
                return
            if answer.ending.pending == 0 and not self._leader_has_more(call, answer):
                return
            if not answer.found:
                self._wait(patience, call)
                call = self._within(call)

    def each(self, calls: Sequence[DirectCall]) -> list[Found | None]:
        """
        The message of each call for one message; None where there is none.

        Raises:
            ReadTimeoutError: Nobody answered for `requestTimeout` whose word counts.
        """
        calls = list(calls)
        by_call: list[Found | None] = [None] * len(calls)
        left, again = list(range(len(calls))), list[int]()
        patience = self._patience()
        while left or again:
            if not left:
                self._wait(patience, calls[again[0]])
                left, again = again, []
            # As many at a time as the server can hold for us if messages stay as large.
            largest = self._client.connection.max_payload
            together = self._appetite.limit(_BYTES_TOGETHER)
            sure = maximum = max(1, together // largest)
            if self._largest:
                is_far = self._client.connection.round_trip_s >= FAR_S
                most = _TOGETHER_FAR if is_far else _TOGETHER
                maximum = max(sure, min(most, together // self._largest))
            try:
                again += self._burst(calls, left[:maximum], by_call)
            except (NotConnectedError, ProtocolError, RequestTimeoutError) as error:
                least = 1 if isinstance(error, ProtocolError) else sure  # 1: they were too much
                if maximum == least or not (error.retryable or least == 1):
                    raise
                self._appetite.shrink()
                self._largest = largest
            else:
                self._appetite.grow()
                left = left[maximum:]
        for i, call in enumerate(calls):
            if by_call[i] is None and call.last_by_subj == subjects.REST:
                # Of ">" the server looks at its last sequence only, which may have been deleted.
                halves = [replace(call, last_by_subj=filter_) for filter_ in ("*", "*.>")]
                there = [message for message in self.each(halves) if message is not None]
                by_call[i] = max(there, key=lambda message: message.sequence, default=None)
        return by_call

    def _burst(
        self, calls: list[DirectCall], which: Sequence[int], by_call: list[Found | None]
    ) -> list[int]:
        """Makes these calls at one time; returns those to be made again."""
        again, missing, foreign = [], [], []
        requests = [calls[i].request(self._js.prefix, self.stream) for i in which]
        bound = 2 * _BYTES_TOGETHER if len(requests) > 1 else math.inf
        replies = self._client.requests(requests, bound)
        for i, reply in zip(which, replies, strict=True):
            got = direct(reply.headers)
            if got is not None:
                if got.stream == self.stream.encode():
                    by_call[i] = found_of(got, reply.data)
                else:
                    foreign.append(i)
            elif reply.status == 404:
                missing.append(i)
            elif not reply.status:
                raise JetStreamError(
                    f"a direct get of stream '{self.stream}' answers with headers that are none of"
                    f" its own: {reply.headers[:80]!r}"
                )
            else:
                self._refused(calls[i], reply.status, reply.description)
                again.append(i)
        self._of_leader(calls, [i for i in missing if not calls[i].appended], by_call)
        appended = [i for i in missing if calls[i].appended]
        if self._may_ask:
            try:  # in place of a mirror
                self._of_leader(calls, foreign + appended, by_call)
                foreign = []
            except PermissionsError:
                self._may_ask = False
        found = [message for message in (by_call[i] for i in which) if message is not None]
        sizes = [max(1, len(message.stored) + len(message.data)) for message in found]
        self._largest = max([self._largest, *sizes])
        return again + foreign

    def _of_leader(
        self, calls: Sequence[DirectCall], which: Sequence[int], by_call: list[Found | None]
    ) -> None:
        """Messages for these calls from the stream's leader."""
        messages = self._js.messages_of([(self.stream, calls[i].query()) for i in which])
        for i, message in zip(which, messages, strict=True):
            if message is not None:
                by_call[i] = message.found

    def ask(self, call: DirectCall) -> Page:
        """`answers` of one call."""
        ((_, page),) = self.answers([call])
        return page

    def answers(
        self, calls: Sequence[DirectCall], good: Callable[[Page], bool] = lambda _: True
    ) -> Iterator[tuple[int, Page]]:
        """
        For each call for several messages the place of the call, and all that one request for it
        brings; asked again until that is `good`.

        Nothing else may be asked on the connection before the last one is handed on.

        Raises:
            ReadTimeoutError: No whole answer that counts within `requestTimeout`.
        """
        left = dict(enumerate(calls))
        patience = self._patience()
        while True:
            for place, page in self._answered(list(left.items()), patience):
                if good(page):
                    del left[place]
                    yield place, page
                    patience.renew()
            if not left:
                return
            self._wait(patience, next(iter(left.values())))

    def _answered(
        self, calls: Sequence[tuple[int, DirectCall]], patience: Patience
    ) -> Iterator[tuple[int, Page]]:
        """Asks once for each call; what does not count, or is lost, is left out."""
        gets: Gets | None = None
        try:
            gets = Gets(self._client, self.stream)
            for place, call in calls:
                gets.ask(self._smaller(call).query())
                try:
                    ending = gets.gather(patience.deadline)
                except ForeignAnswerError:
                    if not call.multi_last:
                        yield place, self._page_of_leader(call)
                    continue
                if ending.code not in (204, 404):
                    self._refused(call, ending.code, ending.text)
                    return
                found = gets.take_each()
                self._appetite.grow()
                yield place, Page(found, ending)
        except (NotConnectedError, RequestTimeoutError) as error:
            if not error.retryable:
                raise
            logger.info("calls are asked again: %s", error)
            self._appetite.shrink()
            self._client.drop()
        finally:
            if gets is not None:
                gets.close()

    def _page_of_leader(self, call: DirectCall) -> Page:
        """What a mirror has answered, from the leader; what it leaves is pending."""
        query, size = self._smaller(call).query(), 0
        found = of_leader(self._js, self.stream, query, min(query.pop("batch"), LEADERS))
        for count, message in enumerate(found, 1):
            size += message.stored_bytes
            if size >= query["max_bytes"]:
                return Page(found[:count], Ending(204, "", {}))
        return Page(found, Ending(204 if found else 404, "", {}))

    def _smaller(self, call: DirectCall) -> DirectCall:
        """The call for as much as is asked for at a time; what it leaves is pending."""
        batch = call.batch and min(call.batch, self._appetite.limit(PAGE_MESSAGES))
        max_bytes = min(call.max_bytes or PAGE_BYTES, PAGE_BYTES)
        return replace(call, batch=batch, max_bytes=self._appetite.limit(max_bytes))

    # ── requests ─────────────────────────────────────────────────────────────────────────────

    def _refused(self, call: DirectCall, code: int, text: str) -> None:
        """Returns where asking again may help."""
        subject = f"{self._js.prefix}.DIRECT.GET.{self.stream}"
        if code == 413:
            raise TooManySubjectsError(self.stream, 0, "", call.multi_last, MAX_MATCHES)
        if code != wire.NO_RESPONDERS:
            raise ApiError(subject, code, 0, text or "refused")
        check_on(self._js, self.stream)

    def _leader_has_more(self, call: DirectCall, answer: Page) -> bool:
        """Whether what looks like the end is none, because somebody else has less."""
        if not call.multi_last:
            query = replace(call, batch=None, max_bytes=None).query()
            query.setdefault("next_by_subj", ">")  # steps over what was deleted
            return self._js.message_get(self.stream, **query) is not None
        if answer.ending.code != 404:
            return False
        up_to = call.up_to_seq
        if call.up_to_time is not None:
            later = self._js.message_get(self.stream, start_time=call.up_to_time)
            up_to = later.sequence - 1 if later is not None else None
        firsts = self._js.messages_of(
            [(self.stream, {"seq": 1, "next_by_subj": filter_}) for filter_ in call.multi_last]
        )
        return any(
            each is not None and (up_to is None or each.sequence <= up_to) for each in firsts
        )

    def _within(self, call: DirectCall) -> DirectCall:
        """
        The call as of the stream's end, where it names a sequence beyond: a stream in files answers
        nothing as of that.
        """
        if call.up_to_seq is None:
            return call
        end = self._js.stream_info(self.stream).last_seq
        return replace(call, up_to_seq=min(call.up_to_seq, end))

    def _patience(self) -> Patience:
        timeout_s = self._client.options.request_timeout_s
        return Patience(timeout_s, pause_s=_AGAIN_S, longest_s=_AGAIN_AT_MOST_S)

    def _wait(self, patience: Patience, call: DirectCall) -> None:
        if patience.over:
            raise ReadTimeoutError(
                self.stream,
                0,
                f"no answer that counts to {str(call.query())[:200]} within"
                f" {patience.timeout_s:.0f}s (requestTimeout): replicas that lag, or mirrors of it,"
                " answer instead; see `nats stream info`, or read the mirror as a stream itself",
            )
        patience.pause()


def _filters(value: str | Sequence[str]) -> tuple[str, ...]:
    given = values.filters(value) if isinstance(value, str) else tuple(value)
    if not given:
        raise ValueError("expected a filter")
    return tuple(values.subject_filter(each) for each in given)


def _time(value: str) -> str:
    now = datetime.now(UTC)
    return values.moment(value).rfc3339(now)


_FIELDS: Final[dict[str, Callable[[Any], Any]]] = {
    "seq": lambda value: values.positive(str(value)),
    "batch": lambda value: values.positive(str(value)),
    "max_bytes": lambda value: values.positive(str(value)),
    "up_to_seq": lambda value: values.positive(str(value)),
    "last_by_subj": values.subject_filter,
    "next_by_subj": values.subject_filter,
    "multi_last": _filters,
    "start_time": _time,
    "up_to_time": _time,
}
"""Readers of the fields that callers give."""


def _call(**given: Any) -> DirectCall:
    """
    The call of these fields; None is none.

    Raises:
        ValueError: One of them is no value of its kind, or they do not go together.
    """
    for name, value in given.items():
        if value is not None and name in _FIELDS:
            try:
                given[name] = _FIELDS[name](value)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
    return DirectCall(**given)


def record_batch(builder: RowBuilder, found: Sequence[Found]) -> pa.RecordBatch:
    """Messages as rows of a read; the column `partition` is 0."""
    return builder.batch(Columns.of(found), 0, (1 << 63) - 1)
