"""
Makes subject partitions of a stream that exists, on the server: no data passes through Spark.

Owns: the *streams layout* (`NAME-{partition}`, one stream a partition, each with a `sources` entry
on the origin) and the *numbered* stream in front of it, which by itself is the *filtered* layout.
Must not know: Spark.

Where the origin's subjects carry the partition number (`flights.{partition}.>`), one hop does:
each stream sources with its filter (`flights.3.>`). Otherwise there are two, because the server
matches a source's filter against the *origin's* subject, before any transform; it takes no filter
beside `subject_transforms` (err_code 10144), uses the first transform that matches and no second
one, and does not hold a sourced message against the stream's own `subjects`. So nothing in one hop
can select by a number that a transform has only just computed. (Literal transforms, one for each
known subject, could; they would lose every subject that comes later.) Hence:

    FLIGHTS ── {{partition(4,1)}} ──▶ FLIGHTS-all ── filter flights.0.> ──▶ FLIGHTS-0
    flights.ATL.JFK            flights.0.ATL.JFK  ── filter flights.1.> ──▶ FLIGHTS-1 …

What holds: each partition has the origin's order, hence the order of each subject; what is
published later is copied too, for as long as the streams exist. A stream that exists is never
changed: with the very same configuration the copy goes on where it stood, else it is refused.

Limits: a copy has its own sequences and timestamps (that of its arrival) and one more header,
`Nats-Stream-Source`. Of the origin's limits, copies have those that mean the same for a part
(`max_age`, `max_msgs_per_subject`); set the others by hand, afterwards and on all of them.
All subjects and their counts are held in memory while the counts are compared.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from . import subjects
from .client import Client
from .errors import ApiError, JetStreamError, OptionError, UnsupportedServerError
from .jetstream import JetStream, StreamInfo
from .layout import resolve_layout
from .options import ConnectionOptions, StreamOptions
from .transforms import Rule, find_partition

__all__ = [
    "Copied",
    "CopyStalledError",
    "CountMismatchError",
    "PartitionPlan",
    "Partitioned",
    "PartitioningError",
    "StreamDiffersError",
    "numbering",
    "partition_stream",
]

logger = logging.getLogger(__name__)

STREAM_NAME_EXISTS: Final = 10058
"""err_code of JSStreamNameExistErr: the stream exists with another configuration."""

_COPIED_SETTINGS: Final = (
    "storage",
    "num_replicas",
    "compression",
    "placement",
    "max_age",
    "max_msgs_per_subject",
    "max_msg_size",
    "allow_msg_ttl",
)
"""Settings that mean the same for a part of the messages as for all of them."""

_FIRST_POLL_S: Final = 0.05
_LAST_POLL_S: Final = 1.0


class PartitioningError(JetStreamError):
    """A stream could not be partitioned; `detail` says why and what to do."""

    def __init__(self, stream: str, detail: str) -> None:
        super().__init__(stream, detail)
        self.stream = stream
        self.detail = detail

    def __str__(self) -> str:
        return f"stream '{self.stream}': {self.detail}"


class StreamDiffersError(PartitioningError):
    """A stream of the name exists and is configured otherwise; it was left as it is."""


class CopyStalledError(PartitioningError, TimeoutError):
    """The server copied nothing for so long; the streams stay, a second run goes on."""

    retryable = True


class CountMismatchError(PartitioningError):
    """The copies do not hold what the origin holds."""


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """
    Which stream becomes which partitions.

    Either the number is in the subjects (`partition_subject`), or `subject` and `tokens` (or
    `destination`) say how the server puts it there.
    """

    origin: str
    partitions: int
    streams: str | None = None
    """Name of the partitions' streams with `{partition}` in it; None: the numbered stream only."""
    partition_subject: str | None = None
    """Where the number stands in the origin's subjects: `flights.{partition}.>`."""
    subject: str | None = None
    """Filter of the subjects to number, where none of them carries a number."""
    tokens: tuple[int, ...] = ()
    """Which of the `*` of `subject` are hashed, from 1; none: the whole subject."""
    destination: str | None = None
    """The transform; default: the number right after the literal beginning (`numbering`)."""
    numbered: str | None = None
    """Name of the numbered stream; default: `streams` with `all` for the number."""

    def __post_init__(self) -> None:
        if self.partitions < 1:
            raise OptionError("partitions", f"expected a positive integer, got '{self.partitions}'")
        if (self.partition_subject is None) == (self.subject is None):
            raise OptionError(
                "partitionSubject",
                "give either it, where the subjects carry the partition's number, or subject, where"
                " they do not",
            )
        if self.partition_subject is not None:
            extra = {"tokens": self.tokens, "destination": self.destination}
            for name, value in (extra | {"numbered": self.numbered}).items():
                if value:
                    raise OptionError(name, "goes with subject, not with partitionSubject")
            _checked("partitionSubject", subjects.partition_token, self.partition_subject)
        else:
            _checked("subject", subjects.check_filter, self.subject or "")
        if self.streams is None and (self.subject is None or self.numbered is None):
            raise OptionError("streams", "required, unless subject and numbered are given")
        if self.streams is not None and self.streams.count("{partition}") != 1:
            raise OptionError(
                "streams", f"expected one {{partition}} as in FLIGHTS-{{partition}}: {self.streams}"
            )
        names = [self.origin, *self.stream_names]
        if self.numbered_name is not None:
            names.append(self.numbered_name)
        if len(set(names)) < len(names):
            raise OptionError("streams", f"expected distinct names, got {', '.join(names)}")
        if self.subject is not None:
            _checked(
                "destination", lambda text: Rule.parse(self.subject or "", text), self.transform
            )
            if (find_partition(self.transform) or (0, ""))[0] != self.partitions:
                raise OptionError(
                    "destination",
                    f"expected {{{{partition({self.partitions},…)}}}} in '{self.transform}'",
                )

    @property
    def stream_names(self) -> tuple[str, ...]:
        """The partitions' streams, by their numbers; none in the filtered layout."""
        if self.streams is None:
            return ()
        return tuple(self.streams.replace("{partition}", str(p)) for p in range(self.partitions))

    @property
    def numbered_name(self) -> str | None:
        """The stream whose subjects are numbered; None where the origin's are."""
        if self.subject is None:
            return None
        return self.numbered or (self.streams or "").replace("{partition}", "all")

    @property
    def transform(self) -> str:
        """What `subject` becomes."""
        if self.subject is None:
            return ""
        return self.destination or numbering(self.subject, self.partitions, self.tokens)

    @property
    def template(self) -> str:
        """Where the number stands in the subjects of the partitions."""
        if self.partition_subject is not None:
            return self.partition_subject
        return (find_partition(self.transform) or (0, ""))[1]


@dataclass(frozen=True, slots=True)
class Copied:
    """How far one stream is."""

    stream: str
    messages: int
    expected: int
    """What the origin held for it when it was last asked."""
    lag: int
    """How far the server says its copying is behind, in messages of its source."""
    error: str = ""
    """What the server says went wrong, if anything did."""


@dataclass(frozen=True, slots=True)
class Partitioned:
    """What was made, and compared with the origin subject by subject."""

    numbered: str | None
    streams: tuple[Copied, ...]
    """The partitions' streams, or the numbered stream alone."""
    subjects: int
    left_out: int
    """Messages of the origin that the filter does not select."""

    @property
    def messages(self) -> int:
        """The messages of all partitions."""
        return sum(each.messages for each in self.streams)


Progress = Callable[[Sequence[Copied]], None]


def numbering(subject: str, partitions: int, tokens: Iterable[int] = ()) -> str:
    """
    A transform that puts the partition's number right after the literal beginning of `subject`.

    `flights.*.*`, 4 and (1,) give `flights.{{partition(4,1)}}.{{wildcard(1)}}.{{wildcard(2)}}`.
    """
    number = f"{{{{partition({','.join(map(str, (partitions, *tokens)))})}}}}"
    parts = subjects.tokens(subject)
    wild = [at for at, part in enumerate(parts) if part in (subjects.ANY, subjects.REST)]
    first = wild[0] if wild else len(parts)
    stars = iter(range(1, len(parts) + 1))
    rest = [f"{{{{wildcard({next(stars)})}}}}" if p == subjects.ANY else p for p in parts[first:]]
    return ".".join([*parts[:first], number, *rest])


def partition_stream(
    connection: ConnectionOptions,
    plan: PartitionPlan,
    *,
    progress: Progress | None = None,
    stall_timeout_s: float = 60.0,
) -> Partitioned:
    """
    Makes the streams of `plan`, waits until they hold what the origin held, and compares.

    Interrupted at any point, it may simply be called again: the server goes on copying meanwhile.

    Args:
        progress: told how far each stream is, the numbered one first, at every look.
        stall_timeout_s: how long nothing may be copied before it is given up.

    Raises:
        OptionError: The plan contradicts the origin.
        StreamDiffersError: A stream exists, configured otherwise; nothing was made.
        CopyStalledError: The server stopped copying.
        CountMismatchError: A copy does not hold what the origin holds.
    """
    client = Client(connection)
    try:
        return _Partitioning(client, plan).run(progress or (lambda _: None), stall_timeout_s)
    finally:
        client.close()


class _Api(JetStream):
    """Two views of STREAM.INFO that only partitioning needs."""

    def subject_counts(self, stream: str, filter: str) -> Counter[str]:
        """Messages by subject, page by page."""
        counts: Counter[str] = Counter()
        offset = 0
        while True:
            body = {"subjects_filter": filter, "offset": offset}
            answer = self._call(f"STREAM.INFO.{stream}", body)
            page = answer["state"].get("subjects") or {}
            counts.update(page)
            offset += len(page)
            if not page or offset >= int(answer.get("total", 0)):
                return counts

    def copied(self, stream: str, expected: int) -> Copied:
        """How far the stream's one source is."""
        answer = self._call(f"STREAM.INFO.{stream}")
        source = (answer.get("sources") or [{}])[0]
        return Copied(
            stream,
            int(answer["state"]["messages"]),
            expected,
            int(source.get("lag", 0)),
            str((source.get("error") or {}).get("description", "")),
        )


class _Partitioning:
    """One run of `partition_stream`."""

    def __init__(self, client: Client, plan: PartitionPlan) -> None:
        self._js = _Api(client)
        self._plan = plan
        version = client.connection.version
        if version < (2, 10, 0):  # older ones ignore the transform, and would copy wrongly
            found = ".".join(map(str, version))
            raise UnsupportedServerError("partitioning a stream", "2.10", found)
        self._origin = self._js.stream_info(plan.origin)
        self._check_origin(client.options)
        self._template = plan.template
        self._filter = plan.subject or subjects.partition_wildcard(self._template)
        self._rule = Rule.parse(plan.subject, plan.transform) if plan.subject else None

    def run(self, progress: Progress, stall_timeout_s: float) -> Partitioned:
        held = self._expected()
        self._create()
        held = self._wait(held, progress, stall_timeout_s)
        found = {
            stream: self._js.subject_counts(stream, subjects.REST) for stream in self._final(held)
        }
        now = self._expected()
        self._compare(held, found, now)
        final = self._final(now)
        logger.info("partitioned stream=%s into=%s", self._plan.origin, ",".join(final))
        return Partitioned(
            self._plan.numbered_name,
            tuple(
                Copied(stream, found[stream].total(), final[stream].total(), 0) for stream in final
            ),
            sum(len(counts) for counts in found.values()),
            max(0, self._js.stream_info(self._plan.origin).messages - now.total()),
        )

    def _check_origin(self, connection: ConnectionOptions) -> None:
        plan, origin = self._plan, self._origin
        if origin.retention != "limits":
            raise PartitioningError(
                origin.name,
                f"retention is {origin.retention}: copying would take its messages from their"
                " consumers; partition a stream with retention limits",
            )
        if plan.partition_subject is not None:
            options = StreamOptions(
                connection,
                origin.name,
                partitions=plan.partitions,
                partition_subject=plan.partition_subject,
            )
            resolve_layout(options, {origin.name: origin.config})  # raises where they disagree

    # ── streams ──────────────────────────────────────────────────────────────────────────────

    def _create(self) -> None:
        """Those that exist first: where one is refused, nothing has been made."""
        plan = self._plan
        configs = []
        feeding = plan.origin
        if plan.numbered_name is not None:
            transform = {"src": plan.subject, "dest": plan.transform}
            feeding = plan.numbered_name
            configs.append(
                self._config(feeding, {"name": plan.origin, "subject_transforms": [transform]})
            )
        for number, name in enumerate(plan.stream_names):
            one = subjects.partition_filter(self._template, number)
            configs.append(self._config(name, {"name": feeding, "filter_subject": one}))
        existing = set(self._js.stream_names())
        for config in sorted(configs, key=lambda config: config["name"] not in existing):
            try:
                self._js.create_stream(config)
            except ApiError as error:
                if error.err_code != STREAM_NAME_EXISTS:
                    raise
                raise self._differs(config) from None

    def _config(self, name: str, source: Mapping[str, Any]) -> dict[str, Any]:
        settings = {
            key: self._origin.config[key] for key in _COPIED_SETTINGS if key in self._origin.config
        }
        # Without subjects of its own nobody can publish into it past the origin.
        return {"name": name, "sources": [dict(source)], "allow_direct": True} | settings

    def _differs(self, config: Mapping[str, Any]) -> StreamDiffersError:
        there: StreamInfo = self._js.stream_info(config["name"])
        wrong = [
            f"{key} is {there.config.get(key)!r} and not {config[key]!r}"
            for key in config
            if there.config.get(key) != config[key]
        ]
        if there.config.get("subjects"):
            wrong.append(f"it has subjects of its own, {there.config['subjects']}")
        return StreamDiffersError(
            there.name,
            f"exists with another configuration ({'; '.join(wrong) or 'limits of its own'}) and was"
            " left as it is; choose other names, or delete it if it is a leftover",
        )

    # ── counts ───────────────────────────────────────────────────────────────────────────────

    def _expected(self) -> Counter[str]:
        """
        What the origin holds now, by the subjects of the copies.

        Raises:
            PartitioningError: A subject belongs to no partition.
        """
        counts = self._js.subject_counts(self._plan.origin, self._filter)
        if self._rule is not None:
            mapped: Counter[str] = Counter()
            for subject, count in counts.items():
                mapped[self._rule.apply(subject)] += count
            counts = mapped
        outside = sorted(s for s in counts if self._number(s) is None)
        if outside:
            raise PartitioningError(
                self._plan.origin,
                f"{sum(counts[s] for s in outside)} messages belong to none of the partitions 0 to"
                f" {self._plan.partitions - 1} of '{self._template}', such as '{outside[0]}';"
                " check partitions and where the number stands",
            )
        return counts

    def _number(self, subject: str) -> int | None:
        token = subjects.tokens(subject)[subjects.partition_token(self._template)]
        known = token.isdecimal() and token == str(int(token))
        return int(token) if known and int(token) < self._plan.partitions else None

    def _final(self, counts: Counter[str]) -> dict[str, Counter[str]]:
        """`counts` by the stream they belong into."""
        names = self._plan.stream_names
        if not names:
            return {str(self._plan.numbered_name): counts}
        parts: dict[str, Counter[str]] = {name: Counter() for name in names}
        for subject, count in counts.items():
            parts[names[self._number(subject) or 0]][subject] = count
        return parts

    def _wait(self, held: Counter[str], progress: Progress, stall_timeout_s: float) -> Counter[str]:
        """Until every stream has as many messages as it should; what the origin held by then."""
        want = self._totals(held)
        last: list[int] = []
        deadline = time.monotonic() + stall_timeout_s
        pause = _FIRST_POLL_S
        while True:
            looked = tuple(self._js.copied(stream, count) for stream, count in want.items())
            progress(looked)
            if all(each.messages >= each.expected for each in looked):
                return held
            messages = [each.messages for each in looked]
            if messages != last:
                last, deadline = messages, time.monotonic() + stall_timeout_s
            elif time.monotonic() > deadline:
                behind = next(each for each in looked if each.messages < each.expected)
                raise CopyStalledError(
                    behind.stream,
                    f"nothing was copied for {stall_timeout_s:.0f}s at {behind.messages:,} of"
                    f" {behind.expected:,} messages, lag {behind.lag:,}"
                    f" ({behind.error or 'the server names no error'}); see what the server logs,"
                    " and run this again to go on",
                )
            elif not any(each.lag for each in looked):
                held = self._expected()  # the origin may have let go of some
                want = self._totals(held)
            time.sleep(pause)
            pause = min(2 * pause, _LAST_POLL_S)

    def _totals(self, held: Counter[str]) -> dict[str, int]:
        """Messages by stream, the numbered one first."""
        first = {self._plan.numbered_name: held.total()} if self._plan.numbered_name else {}
        return first | {stream: counts.total() for stream, counts in self._final(held).items()}

    def _compare(
        self, before: Counter[str], found: Mapping[str, Counter[str]], after: Counter[str]
    ) -> None:
        """
        Every subject of every copy, between what the origin held before and after.

        For an origin that nobody writes to, that is the very same count. One with limits on its
        whole lets go of messages that the copies keep: only there a copy may have more.
        """
        config = self._origin.config
        sheds = any(int(config.get(key) or 0) > 0 for key in ("max_age", "max_msgs", "max_bytes"))
        low, high = self._final(before), self._final(after)
        for stream, counts in found.items():
            for subject in low[stream].keys() | high[stream].keys() | counts.keys():
                least = min(low[stream][subject], high[stream][subject])
                most = max(low[stream][subject], high[stream][subject])
                if counts[subject] < least or (counts[subject] > most and not sheds):
                    span = f"{least:,}" if least == most else f"{least:,} to {most:,}"
                    raise CountMismatchError(
                        stream,
                        f"has {counts[subject]:,} messages of '{subject}' where"
                        f" '{self._plan.origin}' has {span}; delete the copies and begin anew",
                    )


def _checked(option: str, check: Callable[[str], object], value: str) -> None:
    try:
        check(value)
    except OptionError as error:
        raise OptionError(option, error.reason) from None
    except ValueError as error:
        raise OptionError(option, str(error)) from None
