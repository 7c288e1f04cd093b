"""
The streams that hold another stream's partitions, and the way the server fills them.

Owns: the *streams layout* (`NAME-{partition}`, one stream a partition, each with a `sources` entry
on the origin) and the *numbered* stream in front of it, which by itself is the *filtered* layout.
Must not know: connections, the state of streams.

Where the origin's subjects carry the partition number (`flights.{partition}.>`), one hop does:
each stream sources with its filter (`flights.3.>`). Otherwise there are two, because the server
matches a source's filter against the *origin's* subject, before any transform; it takes no filter
beside `subject_transforms` (err_code 10144), uses the first transform that matches and no second
one, and does not hold a sourced message against the stream's own `subjects`. So nothing in one hop
can select by a number that a transform has only just computed. (Literal transforms, one for each
known subject, could; they would lose every subject that comes later.) Hence:

    FLIGHTS ── {{partition(4,1)}} ──▶ FLIGHTS-all ── filter flights.0.> ──▶ FLIGHTS-0
    flights.ATL.JFK            flights.0.ATL.JFK  ── filter flights.1.> ──▶ FLIGHTS-1 …

Copies have no `duplicate_window`: a stream with one drops a sourced message whose `Nats-Msg-Id` it
knows, also where the origin has stored both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from ... import subjects
from ...errors import OptionError
from ...fetch.layout import PARTITIONS
from ...mapping.calls import find_partition
from ...mapping.rule import Rule

MARK: Final = "pyspark-jetstream."
"""Prefix of the metadata that a plan writes into its streams."""

_COPIED_SETTINGS: Final = (
    "storage num_replicas compression placement max_age max_msgs_per_subject max_msg_size"
    " allow_msg_ttl allow_rollup_hdrs"
).split()
"""Settings that mean the same for a part of the messages as for all of them."""


class Feeding(NamedTuple):
    """The source of a stream."""

    feed: str
    filter: str


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """
    Plan of the partitions of a stream.

    Either the number is in the subjects (`partition_subject`), or `subject` and `tokens` (or
    `destination`) say how the server puts it there.
    """

    origin: str
    partitions: int
    streams: str
    """
    Name of the partitions' streams with `{partition}` in it; without it that of the numbered stream
    only.
    """
    partition_subject: str | None = None
    """Subjects of the origin with the place of the number: `flights.{partition}.>`."""
    subject: str | None = None
    """Filter of the subjects to number, where none of them carries a number."""
    tokens: tuple[int, ...] = ()
    """Numbers, from 1, of the `*` of `subject` that are hashed; none: the whole subject."""
    destination: str | None = None
    """The transform; default: the number right after the literal beginning (`numbering`)."""

    def __post_init__(self) -> None:
        if (self.partition_subject is None) == (self.subject is None):
            raise OptionError(
                "partitionSubject",
                "give either it, where the subjects carry the partition's number, or --subject,"
                " where they do not",
            )
        if self.partition_subject is not None:
            for name in ("tokens", "destination"):
                if getattr(self, name):
                    raise OptionError(name, "goes with subject, not with partitionSubject")
            _checked("partitionSubject", subjects.partition_token, self.partition_subject)
        else:
            _checked("subject", subjects.check_filter, self.subject or "")
        count = self.streams.count("{partition}")
        if count > 1 or (count == 0 and self.subject is None):
            raise OptionError(
                "streams", f"expected one {{partition}} as in FLIGHTS-{{partition}}: {self.streams}"
            )
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
        if "{partition}" not in self.streams:
            return ()
        return tuple(self.streams.replace("{partition}", str(p)) for p in range(self.partitions))

    @property
    def numbered_name(self) -> str | None:
        """The stream whose subjects are numbered; None where the origin's are."""
        return self.streams.replace("{partition}", "all") if self.subject is not None else None

    @property
    def names(self) -> tuple[str, ...]:
        """Every stream of the plan, each behind the one that feeds it."""
        return tuple(self.links)

    @property
    def reading(self) -> dict[str, str]:
        """Options of the data source that read the layout."""
        template = {} if self.stream_names else {"partitionSubject": self.template}
        return {"stream": self.streams, "partitions": str(self.partitions)} | template

    @property
    def transform(self) -> str:
        """Destination of `subject`."""
        if self.subject is None:
            return ""
        return self.destination or numbering(self.subject, self.partitions, self.tokens)

    @property
    def template(self) -> str:
        """Subjects of the partitions, with the place of the number."""
        if self.partition_subject is not None:
            return self.partition_subject
        return (find_partition(self.transform) or (0, ""))[1]

    @property
    def filter(self) -> str:
        """Filter of the origin's subjects that are copied."""
        return self.subject or subjects.partition_wildcard(self.template)

    @property
    def rule(self) -> Rule | None:
        """The rule from the origin's subjects to those of the partitions; None where they stay."""
        return Rule.parse(self.subject, self.transform) if self.subject else None

    @property
    def links(self) -> dict[str, Feeding]:
        """What fills each stream; feeds come before their copies."""
        links, feed = {}, self.origin
        if self.numbered_name is not None:
            links[self.numbered_name] = Feeding(feed, self.filter)
            feed = self.numbered_name
        for number, name in enumerate(self.stream_names):
            links[name] = Feeding(feed, subjects.partition_filter(self.template, number))
        return links

    def partition_of(self, subject: str) -> int | None:
        """The partition that a numbered subject belongs to; None if it is none of the N."""
        token = subjects.tokens(subject)[subjects.partition_token(self.template)]
        known = token.isdecimal() and token == str(int(token))
        return int(token) if known and int(token) < self.partitions else None

    def configs(self, origin: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Configurations of all streams, given the origin's; without subjects of their own."""
        settings = {key: origin[key] for key in _COPIED_SETTINGS if key in origin}
        configs = []
        for name, (feed, part) in self.links.items():
            source: dict[str, Any] = {"name": feed, "filter_subject": part}
            if name == self.numbered_name:
                transforms = [{"src": part, "dest": self.transform}]
                source = {"name": feed, "subject_transforms": transforms}
            config = {"name": name, "sources": [source], "allow_direct": True}
            configs.append(config | {"metadata": self.metadata(name)} | settings)
        return configs

    def metadata(self, name: str) -> dict[str, str]:
        """Metadata that tell by which plan a stream was made."""
        made = {"origin": self.origin, PARTITIONS.removeprefix(MARK): str(self.partitions)}
        if name in self.stream_names:
            made["partition"] = str(self.stream_names.index(name))
        return {f"{MARK}{key}": value for key, value in made.items()}


def differences(planned: Mapping[str, Any], there: Mapping[str, Any]) -> list[str]:
    """
    Differences of an existing stream from the copy that is planned; empty where it is that. Limits
    are its owner's; what else is edited shows in the counts.
    """
    marks = {k: v for k, v in (there.get("metadata") or {}).items() if k.startswith(MARK)}
    has = {"metadata": marks, "sources": there.get("sources"), "subjects": there.get("subjects")}
    return [
        f"its {key} are {value or 'none'} and not {planned.get(key, 'of its own')}"
        for key, value in has.items()
        if (value or None) != planned.get(key)
    ]


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


def _checked(option: str, check: Callable[[str], object], value: str) -> None:
    try:
        check(value)
    except ValueError as error:
        reason = error.reason if isinstance(error, OptionError) else str(error)
        raise OptionError(option, reason) from None
