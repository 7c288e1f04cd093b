"""
JetStream's API as this package uses it: requests and their answers, typed where we read them.

One method a request, named as the server names it. No policy: who calls what when is decided in
the wings that read and write. Request formats: ADR-31 (direct get), ADR-42 (priority
groups), and the server's jetstream_api.go.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, TypeVar

from ..errors import (
    OFF,
    ApiError,
    ConsumerNotFoundError,
    JetStreamError,
    ProtocolError,
    StreamNotFoundError,
)
from ..foreign import each, read_json, text
from ..sanitize import get_logger
from . import wire
from .blocks import direct
from .connection import Client, Reply, Request
from .info import (
    ConsumerInfo,
    Found,
    StoredMessage,
    StreamInfo,
    SubjectPage,
    checked,
    consumer_info_of,
    consumer_name_of,
    found_of,
    message_of,
    stream_info_of,
)
from .patience import Patience
from .peer import OLDEST, unsupported

logger = get_logger(__name__)

T = TypeVar("T")

DEFAULT_PREFIX: Final = "$JS.API"
"""Under which the servers that a client is connected to have their JetStream."""

STREAM_NOT_FOUND: Final = 10059
"""err_code of JSStreamNotFoundErr."""

STREAM_NAME_EXISTS: Final = 10058
"""err_code of JSStreamNameExistErr: the stream is there with another configuration."""

CONSUMER_NOT_FOUND: Final = 10014
"""err_code of JSConsumerNotFoundErr."""

_NO_LEADER: Final = 10008
"""err_code of JSClusterNotAvailErr: a leader is elected."""

_NOT_NOW: Final = OFF | frozenset(
    {
        wire.NO_RESPONDERS,  # nobody listens: likewise, or what would answer is being restored
        10007,  # JSClusterNotAssignedErr: the stream moves
        _NO_LEADER,
        10009,  # JSClusterNotLeaderErr: likewise
        10118,  # JSStreamOfflineErr: none of its replicas is up
        10119,  # JSConsumerOfflineErr: likewise
        10163,  # JSStreamExpectedLastSeqPerSubjectNotReady: another write of the subject is stored
        10167,  # JSStreamTooManyRequests: the stream's queue is full
    }
)
"""
err_code of errors that pass: nothing was done, and the same request may succeed in a moment. Of all
that 2.15.1 has these are the ones that our requests can get and that nobody needs to mend.
"""

_LIMITED: Final = frozenset({10002, 10027, 10047, 10120, 10122})
"""err_codes of what an account may not have: so much room, so many streams, such a tier or size."""

_LIMITS: Final = re.compile(r'"(R\d+)":|"(\w*max_\w+)":([1-9]\d*)')
"""In the account's INFO its tiers, and its limits that are any, with their values."""

_NOT_NOW_PAUSE_S: Final = 0.1

_ERR_CODE: Final = re.compile(rb'"error":\s*\{"code":\s*\d+,\s*"err_code":\s*(\d+)')
_LONGEST_ERROR: Final = 1024
"""Answers of more bytes are no errors."""

_CLUSTER: Final = re.compile(rb'"cluster":\s*\{')

_MIRROR_PAUSE_S: Final = 0.001
"""Before a stream is asked again in whose place mirrors answer, by chance."""

NO_MESSAGE_FOUND: Final = 10037
"""err_code of JSNoMessageFoundErr, from STREAM.MSG.GET."""

_IN_COMMON: Final = 1_000
"""Subjects that two pages of a listing share, so that subjects that leave do not hide others."""

_MOST_PAGES: Final = 10_000
"""Pages of a listing: an answer that claims more of them does not tell the truth."""

_IN_VAIN: Final = 100
"""After this many pages in a row without a new name, the listing is an error."""


def _whole(answer: Any) -> Any:
    """All of an answer."""
    return answer


def _names(answer: dict[str, Any]) -> tuple[list[str], int]:
    """A page of names of streams, and how many there are."""
    return each(text)(answer.get("streams") or []), answer.get("total", 0)


def _page(answer: dict[str, Any]) -> tuple[dict[str, dict[str, Any]], list[str], int]:
    """
    A page of consumers by name, the names of those without a leader, and how many there are. One
    of the latter may be among the former, too, with its configuration and an empty name.
    """
    page = {consumer_name_of(consumer): consumer for consumer in answer.get("consumers") or []}
    for consumer in page.values():
        if "delivered" in consumer:
            consumer_info_of(consumer)  # whoever gets the page can read it so
    return page, answer.get("missing") or [], answer.get("total", 0)


def behind(sequence: int, filter_: str | None) -> dict[str, Any]:
    """The fields that name the first message behind a sequence, of a filter or of all subjects."""
    filtered = {"next_by_subj": filter_} if filter_ is not None else {}
    return {"seq": sequence + 1, **filtered}


class JetStream:
    """Requests under one API prefix."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.prefix = client.options.api_prefix

    # ── streams ──────────────────────────────────────────────────────────────────────────────

    def stream_info(self, stream: str) -> StreamInfo:
        """
        Configuration and state, from the stream's leader.

        Raises:
            StreamNotFoundError: There is none of this name.
        """
        return self.stream_infos([stream])[0]

    def stream_infos(self, streams: list[str]) -> list[StreamInfo]:
        """`stream_info` of several streams in one round trip."""
        return self.look(streams, [])[0]

    def look(
        self, streams: Sequence[str], consumers: Sequence[tuple[str, str]]
    ) -> tuple[list[StreamInfo], list[ConsumerInfo | None]]:
        """`stream_infos` and `consumer_infos` in one round trip."""
        of = self._about(streams)
        at = [(f"{self.prefix}.CONSUMER.INFO.{s}.{c}", b"") for s, c in consumers]
        replies = self._replies([*of, *at])
        infos = self._answers(of, stream_info_of, replies[: len(of)])
        return infos, self._there(at, consumer_info_of, _is_gone, replies[len(of) :])

    def stream_infos_there(self, streams: list[str]) -> list[StreamInfo | None]:
        """`stream_infos` with None for those that there are not."""
        return self._there(self._about(streams), stream_info_of, _is_gone)

    def _about(self, streams: Sequence[str]) -> list[Request]:
        return [(f"{self.prefix}.STREAM.INFO.{stream}", b"") for stream in streams]

    def stream_of(self, subject: str) -> str | None:
        """The name of the stream that takes this subject, or None."""
        return self.streams_of([subject])[0]

    def streams_of(self, subjects: Sequence[str]) -> list[str | None]:
        """`stream_of` of several subjects in one round trip."""
        # Not STREAM.LIST: a cluster waits 4 s for the leader of every stream before it answers.
        api = f"{self.prefix}.STREAM.NAMES"
        calls = [(api, json.dumps({"subject": subject}).encode()) for subject in subjects]
        return [names[0] if names else None for names, _ in self._answers(calls, _names)]

    def subject_pages(self, stream: str, wanted: Sequence[tuple[str, int]]) -> list[SubjectPage]:
        """For each (filter, offset) the stream's subjects from there on, 100,000 at the most."""
        subject = f"{self.prefix}.STREAM.INFO.{stream}"
        bodies = [{"subjects_filter": filter_, "offset": offset} for filter_, offset in wanted]
        requests = [(subject, json.dumps(body).encode()) for body in bodies]

        def page(answer: dict[str, Any]) -> SubjectPage:
            state, total = answer["state"], answer.get("total", 0)
            counts = state.get("subjects") or {}
            return SubjectPage(state["last_seq"], answer.get("limit") or len(counts), total, counts)

        pages = self._answers(requests, page)
        return [
            replace(page, end=min(offset + page.end, page.total))
            for (_, offset), page in zip(wanted, pages, strict=True)
        ]

    def subject_counts(self, stream: str, filters: Sequence[str]) -> tuple[int, dict[str, int]]:
        """`listed` in one."""
        counts: dict[str, int] = {}
        last, pages = self.listed(stream, filters)
        for page in pages:
            counts.update(page)
        return last, counts

    def listed(
        self, stream: str, filters: Sequence[str]
    ) -> tuple[int, Iterator[Mapping[str, int]]]:
        """
        The stream's last sequence, and then, page by page, the subjects that match one of the
        filters, with how many messages each has; some of them more than once.

        All subjects that have messages at or below that sequence are there, and some newer ones.
        """
        firsts = self.subject_pages(stream, [(wanted, 0) for wanted in filters])

        def pages() -> Iterator[Mapping[str, int]]:
            for filter_, page in zip(filters, firsts, strict=True):
                yield page.counts
                furthest, in_vain = max(page.counts, default=""), 0
                while page.end < page.total:
                    page = self._next_page(stream, filter_, page)
                    yield page.counts
                    last = max(page.counts, default="")  # `end` is only what the server claims
                    in_vain = 0 if last > furthest else in_vain + 1
                    furthest = max(last, furthest)
                    if in_vain > _IN_VAIN:
                        raise ProtocolError(
                            f"the subjects of stream '{stream}' are listed without end"
                        )

        return min(page.last_seq for page in firsts), pages()

    def _next_page(self, stream: str, filter_: str, page: SubjectPage) -> SubjectPage:
        """
        The page behind this one, overlapping it: they are cut from a sorted list by number, and
        subjects that leave in between shift it.
        """
        last, back = max(page.counts, default=""), _IN_COMMON
        while True:
            offset = max(0, page.end - back)
            following = self.subject_pages(stream, [(filter_, offset)])[0]
            if offset == 0 or (following.counts and min(following.counts) <= last):
                return following
            back *= 10

    def stream_names(self, filter: str | None = None) -> list[str]:
        """The names of all streams of the account; or of those that take subjects of a filter."""
        names: list[str] = []
        while True:
            body: dict[str, Any] = {"offset": len(names)}
            if filter is not None:
                body["subject"] = filter
            page, total = self.call("STREAM.NAMES", body, _names)
            is_new = not set(page) <= set(names)
            names.extend(page)
            if not is_new or len(names) >= total:
                return names

    def streams_listed(self, takes: Callable[[str], bool]) -> dict[str, StreamInfo | None]:
        """
        `stream_info` of all streams whose names are taken, by name, in pages of 256.

        None of one whose leader does not answer: a cluster lists it as one that holds nothing.
        Pages overlap, so that streams that are deleted meanwhile do not hide others.
        """

        def page(answer: dict[str, Any]) -> tuple[int, int, dict[str, StreamInfo | None]]:
            streams = answer.get("streams") or []
            missing = answer.get("missing") or []
            there: dict[str, StreamInfo | None] = dict.fromkeys(filter(takes, missing))
            for one in streams:
                name = one["config"]["name"]
                if takes(name) and name not in missing:
                    there[name] = stream_info_of(one)
            # One whose leader does not answer is in `missing`, or in both.
            names = {*missing, *(one["config"]["name"] for one in streams)}
            return answer["total"], len(names), there

        total, length, found = self.call("STREAM.LIST", {"offset": 0}, page)
        step = length - length // 16
        offsets = range(step, total, step) if 0 < length < total else range(0)
        if len(offsets) > _MOST_PAGES:
            raise ProtocolError(f"STREAM.LIST: the answer has {length} of {total} streams")
        bodies = [{"offset": at} for at in offsets]
        requests = [(f"{self.prefix}.STREAM.LIST", json.dumps(body).encode()) for body in bodies]
        for _, _, more in self._answers(requests, page):
            found |= more
        return found

    def create_stream(self, config: dict[str, Any]) -> dict[str, Any]:
        """
        Creates a stream, or does nothing when it exists with this very configuration.

        Raises:
            ApiError: It is refused; says which limits the account has, by tier, if these are why.
        """
        try:
            return self.call(f"STREAM.CREATE.{config['name']}", config)
        except ApiError as error:
            if error.err_code in _LIMITED:
                with suppress(JetStreamError):
                    info = self.client.request(f"{self.prefix}.INFO").data.decode("latin-1")
                    has = " ".join(tier or f"{of}={n}" for tier, of, n in _LIMITS.findall(info))
                    error.description += has and f"; raise or keep to {has} (`nats account info`)"
            raise

    def delete_stream(self, stream: str) -> None:
        """Deletes the stream; one that is gone already is fine."""
        with suppress(StreamNotFoundError):
            self.call(f"STREAM.DELETE.{stream}")

    def purge(self, stream: str, subject: str | None, below: int | None) -> int:
        """Removes the messages of `subject`, or those with a sequence below `below`; how many."""
        body: dict[str, Any] = {} if below is None else {"seq": below}
        if subject is not None:
            body["filter"] = subject
        return int(self.call(f"STREAM.PURGE.{stream}", body).get("purged", 0))

    def message_get(self, stream: str, **query: Any) -> StoredMessage | None:
        """One message from the leader (STREAM.MSG.GET), or None."""
        return self.messages_of([(stream, query)])[0]

    def last_messages(self, stream: str, subjects: list[str]) -> list[StoredMessage | None]:
        """The last message of each subject, from the stream's leader (STREAM.MSG.GET)."""
        return self.messages(stream, [{"last_by_subj": subject} for subject in subjects])

    def messages(
        self, stream: str, queries: Sequence[dict[str, Any]]
    ) -> list[StoredMessage | None]:
        """The whole message that each query of STREAM.MSG.GET finds, in one round trip."""
        return self.messages_of([(stream, query) for query in queries])

    def messages_of(
        self, queries: Sequence[tuple[str, dict[str, Any]]]
    ) -> list[StoredMessage | None]:
        """
        `messages` of several (stream, query), in one round trip.

        A time stands for the first message that is not older. The server makes a sequence of it,
        which may be that of a deleted message; with a filter it goes on to the next.
        """
        bodies = [{"next_by_subj": ">"} | q if "start_time" in q else q for _, q in queries]
        requests = [
            (f"{self.prefix}.STREAM.MSG.GET.{stream}", json.dumps(body).encode())
            for (stream, _), body in zip(queries, bodies, strict=True)
        ]
        return self._there(requests, message_of, lambda error: error.err_code == NO_MESSAGE_FOUND)

    def publish(self, subject: str, data: bytes, headers: list[tuple[str, str]]) -> int:
        """
        Stores one message and returns its sequence; sent again until there is a PubAck.

        Raises:
            ApiError: The stream refuses it.
        """
        (reply,) = self._replies([(subject, data, wire.header_block(headers))])
        return self.answer(subject, reply, lambda answer: int(answer["seq"]))

    # ── direct get ───────────────────────────────────────────────────────────────────────────

    def next_messages(self, queries: list[tuple[str, dict[str, Any]]]) -> list[Found | None]:
        """
        For each (stream, query) the first message a batched direct get of one finds.

        The query is `{seq | start_time, next_by_subj}`; the answer carries how many more of the
        same filter follow, which is the server's own count (ADR-31, "Batched requests"). Only the
        stream's own answers count, and of those that find nothing, what its leader says.
        """
        if not queries:
            return []
        # The trailing 204 EOB of a batch of one arrives on the same inbox later; `requests` keeps
        # the first reply of each token and drops the rest.
        requests = [
            (f"{self.prefix}.DIRECT.GET.{stream}", json.dumps(query | {"batch": 1}).encode())
            for stream, query in queries
        ]
        answers: list[Found | None] = [None] * len(queries)
        left = list(range(len(queries)))
        patience = Patience(self.client.options.request_timeout_s, pause_s=_MIRROR_PAUSE_S)
        while True:
            asked, left, missing = left, [], []
            replies = self._replies([requests[index] for index in asked])
            for index, reply in zip(asked, replies, strict=True):
                got = direct(reply.headers)
                if got is None and reply.status == 404:
                    missing.append(index)
                    continue
                if got is None:
                    raise ApiError(
                        requests[index][0], reply.status, 0, reply.description or "no direct get"
                    )
                if got.stream.decode("utf-8", "replace") != queries[index][0]:
                    left.append(index)  # a mirror of it answered, which may hold less, or more
                elif not got.batched:
                    raise unsupported(self.client.connection.version, OLDEST, "counting messages")
                else:
                    answers[index] = found_of(got, reply.data)
            again = [(queries[i][0], {"next_by_subj": ">"} | queries[i][1]) for i in missing]
            there = self.messages_of(again)  # by the leaders' word
            left += [index for index, found in zip(missing, there, strict=True) if found]
            if not left:
                return answers
            if patience.over:
                raise JetStreamError(
                    f"only mirrors answer for stream '{queries[left[0]][0]}' within"
                    f" {patience.timeout_s:.0f}s (requestTimeout); is"
                    " allow_direct set on the stream itself?"
                )
            if len(left) == len(asked):
                patience.pause()

    # ── consumers ────────────────────────────────────────────────────────────────────────────

    def consumer_info(self, stream: str, consumer: str) -> ConsumerInfo:
        """
        State of the consumer.

        Raises:
            ConsumerNotFoundError: There is none of this name.
        """
        return self.call(f"CONSUMER.INFO.{stream}.{consumer}", None, consumer_info_of)

    def consumer_infos(self, consumers: list[tuple[str, str]]) -> list[ConsumerInfo | None]:
        """`consumer_info` of several (stream, consumer) in one round trip; None where missing."""
        return self.look([], consumers)[1]

    def consumer_list(self, stream: str) -> tuple[list[dict[str, Any]], list[str]]:
        """
        All consumers of the stream as the server describes them, and the names of those of which
        no leader answers.
        """
        consumers: dict[str, dict[str, Any]] = {}
        missing: list[str] = []
        while True:
            offset = len(consumers.keys() | set(missing))
            page, silent, total = self.call(f"CONSUMER.LIST.{stream}", {"offset": offset}, _page)
            consumers |= page
            missing += silent
            listed = len(consumers.keys() | set(missing))
            if listed == offset or listed >= total:
                return [consumers[name] for name in consumers if name not in missing], missing

    def create_consumer(
        self, stream: str, config: dict[str, Any], action: str = ""
    ) -> ConsumerInfo:
        """
        Creates the consumer, a durable or one with but a `name`, or updates what may be updated.

        Args:
            action: `create` only where there is none of the name.
        """
        return self.create_consumers([(stream, config)], action)[0]

    def create_consumers(
        self, of: Sequence[tuple[str, dict[str, Any]]], action: str = ""
    ) -> list[ConsumerInfo]:
        """`create_consumer` of several (stream, configuration) in one round trip."""
        calls = []
        for stream, config in of:
            # The filter-appended form of the API cannot take every filter; the plain one can.
            name = config.get("durable_name") or config["name"]
            subject = f"{self.prefix}.CONSUMER.CREATE.{stream}.{name}"
            body = {"stream_name": stream, "config": config, "action": action}
            calls.append((subject, json.dumps(body).encode()))
        return self._answers(calls, consumer_info_of)

    def unpins(self, of: Sequence[tuple[str, str]], group: str) -> None:
        """Takes the pins of several (stream, consumer) in one round trip, whoever has them."""
        body = json.dumps({"group": group}).encode()
        self._answers([(f"{self.prefix}.CONSUMER.UNPIN.{s}.{c}", body) for s, c in of])

    def pause(self, stream: str, consumer: str, until: datetime | None) -> str:
        """A consumer delivers nothing until then (None: it does); the server's word for then."""
        body = {"pause_until": until.isoformat()} if until is not None else {}

        def until_then(answer: dict[str, Any]) -> str:
            return str(answer["pause_until"]) if answer.get("paused") else ""

        return self.call(f"CONSUMER.PAUSE.{stream}.{consumer}", body, until_then)

    def resets(self, to: list[tuple[str, str, int]]) -> list[ConsumerInfo]:
        """
        By (stream, consumer, sequence): the next delivery is the first message at or above it, and
        deliveries count from 1. In one round trip.

        A missing consumer is not answered at all: ask `consumer_infos` first.
        """
        api = f"{self.prefix}.CONSUMER.RESET"
        calls = [(f"{api}.{stream}.{name}", b'{"seq":%d}' % seq) for stream, name, seq in to]
        return self._answers(calls, consumer_info_of)

    def call(
        self, api: str, body: dict[str, Any] | None = None, read: Callable[[Any], T] = _whole
    ) -> T:
        """The answer to one request, `api` being what follows the prefix; raises as `answer`."""
        data = json.dumps(body).encode() if body is not None else b""
        return self._answers([(f"{self.prefix}.{api}", data)], read)[0]

    def _answers(
        self,
        requests: Sequence[Request],
        read: Callable[[Any], T] = _whole,
        replies: Sequence[Reply] | None = None,
    ) -> list[T]:
        """
        Answers to several requests, in one round trip, or as the replies to them have them; raises
        the first error.
        """
        came = zip(requests, replies or self._replies(requests), strict=True)
        return [self.answer(asked[0], reply, read) for asked, reply in came]

    def _there(
        self,
        requests: Sequence[Request],
        read: Callable[[Any], T],
        is_gone: Callable[[ApiError], bool],
        replies: Sequence[Reply] | None = None,
    ) -> list[T | None]:
        """Likewise; None of one whose error means that it is not there."""
        found: list[T | None] = []
        for asked, reply in zip(requests, replies or self._replies(requests), strict=True):
            try:
                found.append(self.answer(asked[0], reply, read))
            except ApiError as error:
                if not is_gone(error):
                    raise
                found.append(None)
        return found

    def _replies(self, requests: Sequence[Request]) -> list[Reply]:
        """
        The replies; what is refused by `_NOT_NOW` is asked for again, until `requestTimeout` after
        the first question, or, if nobody was there so far, for `connectTimeout`: a domain may be
        behind a link that comes up. The last one may take as long again.
        """
        if not requests:
            return []
        client, passing = self.client, _NOT_NOW
        patience = Patience(client.options.request_timeout_s, pause_s=_NOT_NOW_PAUSE_S)
        replies = client.requests(requests)
        began = time.monotonic()
        told = False
        while True:
            codes = [
                _err_code(reply, asked[0]) for asked, reply in zip(requests, replies, strict=True)
            ]
            again = [i for i, code in enumerate(codes) if code in passing]
            if any(reply.status != wire.NO_RESPONDERS for reply in replies):
                client.unanswered = False
            if not again or patience.over:
                return replies
            if client.unanswered and time.monotonic() - began >= client.options.connect_timeout_s:
                return replies
            code = codes[again[0]]
            if not told:
                told = True
                logger.warning(
                    "JetStream does not answer %s yet (err_code %d), as while a server or a leader"
                    " comes back; it is asked again for %gs (requestTimeout), then this fails",
                    requests[again[0]][0], code, client.options.request_timeout_s,
                )  # fmt: skip
            if code in OFF:
                # While JetStream comes back, streams and consumers are restored one by one.
                passing |= {STREAM_NOT_FOUND, CONSUMER_NOT_FOUND, wire.NO_RESPONDERS}
            patience.pause()
            answers = client.requests([requests[i] for i in again])
            for i, reply in zip(again, answers, strict=True):
                replies[i] = reply

    def answer(self, subject: str, reply: Reply, read: Callable[[Any], T] = _whole) -> T:
        """
        The API's answer to a request on this subject: the only way into this package.

        Args:
            read: makes a value of the answer's JSON, whose members are `checked`.

        Raises:
            ApiError: The request is refused.
            ProtocolError: The answer is not one of JetStream's, or is about another stream or
                consumer than the last token of the subject names.
        """
        if reply.status == wire.NO_RESPONDERS:
            raise ApiError(
                subject,
                reply.status,
                0,
                "nobody answers: JetStream is off for this account, or jsDomain or jsApiPrefix is"
                " wrong, or no stream takes this subject",
            )
        if _is_leaderless(subject, reply):
            raise ApiError(subject, 503, _NO_LEADER, "the stream has no leader right now")
        try:
            answer = read_json(reply.data)
        except ValueError:
            raise ProtocolError(f"{subject}: the answer is no JSON: {reply.data[:80]!r}") from None
        try:
            answer = checked(answer)
            refused = answer.get("error")
            if refused is None:
                value = read(answer)
                if isinstance(value, StreamInfo | ConsumerInfo):
                    if value.name != subject.rpartition(".")[2]:
                        raise ValueError(f" is about {value.name!r:.80}")
                return value
        except KeyError as error:
            raise ProtocolError(f"{subject}: the answer lacks {error}") from None
        except ValueError as error:
            raise ProtocolError(f"{subject}: the answer{error}") from None
        err_code = refused.get("err_code", 0)
        kind = {
            STREAM_NOT_FOUND: StreamNotFoundError,
            CONSUMER_NOT_FOUND: ConsumerNotFoundError,
        }.get(err_code, ApiError)
        raise kind(
            subject, refused.get("code", 0), err_code, refused.get("description", "no reason given")
        )


def _is_gone(error: ApiError) -> bool:
    return isinstance(error, StreamNotFoundError | ConsumerNotFoundError)


def _err_code(reply: Reply, subject: str) -> int:
    """The error that is answered to a request on this subject, 0 for none."""
    if ".DIRECT.GET." in subject and direct(reply.headers) is not None:
        return 0  # a stored message, whatever it says
    if reply.status == wire.NO_RESPONDERS:
        return wire.NO_RESPONDERS
    if _is_leaderless(subject, reply):
        return _NO_LEADER
    if len(reply.data) > _LONGEST_ERROR:
        return 0
    match = _ERR_CODE.search(reply.data)
    return int(match[1]) if match is not None else 0


def _is_leaderless(subject: str, reply: Reply) -> bool:
    """
    Whether a replica answers STREAM.INFO while the stream has no leader: nats-server 2.15.1 has it
    say what it holds, which may be nothing at all if it was away.
    """
    if ".STREAM.INFO." not in subject:
        return False
    cluster = _CLUSTER.search(reply.data)
    return cluster is not None and b'"leader":' not in reply.data[cluster.end() :]
