"""
Values of options: how their text is read.

Each function takes the text a user wrote and returns the value, or raises `ValueError` with one
line that says what was expected and what came. Which option takes which value is in the
wings' `options`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from . import subjects
from .foreign import read_json

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
_KAFKAS: Final = {-1: LATEST, -2: EARLIEST}

_GROUP_NAME: Final = "[a-zA-Z0-9/_=-]{1,16}"
"""Names that the server takes as a priority group (consumer.go, validGroupName)."""

_FIRST_MOMENT: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_MOMENT: Final = datetime(2262, 1, 1, tzinfo=UTC)

_MAX_INBOX_PREFIX: Final = 48
"""With it, a publish and its reply subject still fit a protocol line (`MAX_SUBJECT_BYTES`)."""

_BELOW_MICROS: Final = re.compile(r"[.,]\d{6}(\d{1,3})", re.ASCII)

_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)", re.ASCII)
_LONGEST_S: Final = 36_500 * 86_400.0
"""A century: longer overflows a socket's timeout, the server's nanoseconds, or the calendar."""

_DURATION_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE: Final = re.compile(r"(\d+)\s*(B|KB|MB|GB|KiB|MiB|GiB)?", re.IGNORECASE | re.ASCII)
_SIZE_BYTES: Final = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
}


class Secret:
    """A value that never prints: `reveal()` is the only way to it."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The value itself."""
        return self._value

    def __repr__(self) -> str:
        return "***"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __reduce__(self) -> tuple[type[Secret], tuple[str, ...]]:
        return Secret, (self._value,)


class SecretFile(Secret):
    """
    The text of a file, which is read again at each `reveal()`: whoever renews the file renews the
    secret. Where the file is not (a host of Spark's that lacks it), the secret is the text that it
    had when this was made, or pickled.
    """

    __slots__ = ("_path",)

    def __init__(self, path: str, value: str) -> None:
        super().__init__(value)
        self._path = path

    def reveal(self) -> str:
        """The text of the file now."""
        with suppress(ValueError):
            self._value = _text_of_file(self._path)
        return self._value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SecretFile) and other._path == self._path

    def __hash__(self) -> int:
        return hash(self._path)

    def __reduce__(self) -> tuple[type[Secret], tuple[str, ...]]:
        return SecretFile, (self._path, self.reveal())


@dataclass(frozen=True, slots=True)
class Moment:
    """A point in time: absolute, or so long before now."""

    text: str
    absolute: datetime | None = None
    before_now: timedelta | None = None
    nanoseconds: int = 0
    """Nanoseconds beyond the microseconds of `absolute`: 0 to 999."""

    def __str__(self) -> str:
        return self.text

    def resolve(self, now: datetime) -> datetime:
        """The point in time, given what now is."""
        if self.absolute is not None:
            return self.absolute
        return now - (self.before_now or timedelta())

    def rfc3339(self, now: datetime) -> str:
        """
        The point in time as the server reads it, to the nanosecond.

        Within the years 1970 to 2261, outside of which the server's nanoseconds overflow.
        """
        at = self.resolve(now).astimezone(UTC)
        if not _FIRST_MOMENT <= at < _LAST_MOMENT:
            return f"{min(max(at, _FIRST_MOMENT), _LAST_MOMENT):%Y-%m-%dT%H:%M:%SZ}"
        return f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond:06d}{self.nanoseconds:03d}Z"


@dataclass(frozen=True, slots=True)
class Starting:
    """
    Start or end of a read: one word for all partitions, a sequence for each, or a moment.

    `sequences[p]` is the first sequence to read of partition p (`startingOffsets`) or the last
    (`endingOffsets`); partitions left out follow `word`.
    """

    word: str = EARLIEST
    sequences: Mapping[int, int | str] = field(default_factory=dict)
    moment: Moment | None = None
    streams: Mapping[str, Mapping[int, int | str]] = field(default_factory=dict)
    """`sequences` of each stream where a read has several."""

    def of(self, partition: int, stream: str) -> int | str:
        """What is said of a partition, or of the only one of a stream."""
        said = self.sequences.get(partition, self.word)
        return self.streams.get(stream, {}).get(0, said)


def text(value: str) -> str:
    """A word, not empty."""
    if not value.strip():
        raise ValueError("expected a value, got an empty string")
    return value.strip()


def positive(value: str) -> int:
    """An integer above zero."""
    if not re.fullmatch(r"[0-9]{1,19}", value.strip()) or int(value) == 0:
        raise ValueError(f"expected a positive integer, got '{value}'")
    return int(value)


def count(value: str) -> int:
    """A whole number, 0 or more."""
    if not re.fullmatch(r"[0-9]{1,18}", value.strip()):
        raise ValueError(f"expected a whole number, 0 or more, got '{value}'")
    return int(value)


def partition_count(value: str) -> int:
    """An integer above zero."""
    if value.strip() == "auto":
        raise ValueError(
            "expected a number: no query goes over to another layout while it runs. Stop it, and"
            " let pyspark-jetstream partition --switch write its checkpoint"
        )
    return positive(value)


def inline_or_file(value: str) -> str:
    """The text itself where it holds a brace, else the text of the file it names."""
    if "{" in value:
        return value
    return _text_of_file(value)


def stream_subjects(value: str) -> tuple[str, ...]:
    """The filters of a comma list, each with at most one `{partition}` token."""
    return stream_filters([word.strip() for word in text(value).split(",")])


def stream_filters(filters: Sequence[str]) -> tuple[str, ...]:
    """Filters of a stream, each with at most one `{partition}` token."""
    for filter_ in filters:
        if "{partition}" in filter_:
            partition_subject(filter_)
        else:
            subjects.check_filter(filter_)
    return tuple(filters)


def boolean(value: str) -> bool:
    """`true` or `false`."""
    words = {"true": True, "false": False}
    if value.strip().lower() not in words:
        raise ValueError(f"expected true or false, got '{value}'")
    return words[value.strip().lower()]


def duration(value: str, unit: str = "") -> float:
    """
    Seconds of a duration with its unit.

    Args:
        unit: that of a number without one; "" where there must be one.
    """
    match = _DURATION.fullmatch(value.strip()) or _DURATION.fullmatch(f"{value.strip()}{unit}")
    if match is None:
        other = f", or a number (of {unit})" if unit else ""
        raise ValueError(
            f"expected a duration with its unit such as 500ms, 30s, 15m{other}, got '{value}'"
        )
    seconds = float(match[1]) * _DURATION_S[match[2]]
    if seconds <= 0:
        raise ValueError(f"expected more than zero, got '{value}'")
    if seconds > _LONGEST_S:
        raise ValueError(f"expected at most 36500d, got '{value}'")
    return seconds


def size(value: str) -> int:
    """Bytes of a size, with or without its unit."""
    match = _SIZE.fullmatch(value.strip())
    if match is None or int(match[1]) == 0:
        raise ValueError(f"expected a size such as 8MiB or a number of bytes, got '{value}'")
    return int(match[1]) * _SIZE_BYTES[(match[2] or "B").lower()]


def servers(value: str) -> tuple[str, ...]:
    """The URLs of a comma list, with their scheme and without a user."""
    if "@" in value:  # not shown: anything before it may be a password
        raise ValueError(
            "a user does not belong into a URL, where query plans show it; use the options user and"
            " password, or token"
        )
    servers = []
    for word in value.split(","):
        server = word.strip()
        url = server if "://" in server else f"nats://{server}"
        match = re.fullmatch(
            r"(nats|tls)://(\[[0-9a-fA-F:.]+\]|[^\s:/@\[\]]+)(:[0-9]{1,5})?/?", url
        )
        if re.match(r"wss?://", url):
            raise ValueError(
                f"'{server}': WebSocket is not supported; give the server's port for clients, as"
                " nats://host:4222 or tls://host:4222"
            )
        if match is None or not 0 < int((match[3] or ":4222")[1:]) < 1 << 16:
            raise ValueError(f"expected a comma list of nats:// or tls:// URLs, got '{server}'")
        servers.append(url.rstrip("/"))
    return tuple(servers)


def existing_file(value: str) -> str:
    """The path of a file that is there."""
    path = os.path.expanduser(text(value))
    if not os.path.isfile(path):
        raise ValueError(f"no such file: '{path}'")
    return path


def secret(value: str) -> Secret:
    """The text as a secret."""
    return Secret(value)


def secret_file(value: str) -> Secret:
    """A file's text as a secret, as it is whenever somebody logs in."""
    return SecretFile(existing_file(value), _text_of_file(value))


def _text_of_file(value: str) -> str:
    path = existing_file(value)
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read '{path}': {type(error).__name__}") from None


def stream_name(value: str) -> str:
    """A name the server takes for a stream."""
    what = "a stream name (no dots, wildcards, slashes or blanks)"
    return _name(value, r"[^\s.*>/\\]+", what)


def stream_pattern(value: str) -> str:
    """A name of streams in which `*` stands for any characters."""
    stream_name(value.replace("*", "x"))
    if "*" not in value:
        raise ValueError(f"expected a name with * for any characters, got '{value}'")
    return value.strip()


def bucket_name(value: str) -> str:
    """A name that a Key-Value bucket may have (ADR-8)."""
    return _name(value, "[a-zA-Z0-9_-]+", "a bucket name of a-z A-Z 0-9 _ -")


def consumer_name(value: str) -> str:
    """A name the server takes for a durable consumer."""
    what = "a durable name (no dots, wildcards, slashes or blanks)"
    return _name(value, r"[^\s.*>/\\{}]+", what)


def subject_filter(value: str) -> str:
    """A subject that may hold wildcards."""
    name = text(value)
    subjects.check_filter(name)
    return name


def filters(value: str) -> tuple[str, ...]:
    """Subject filters: one, or a comma list; each once."""
    if not value.replace(",", "").strip() or value.strip().startswith('["'):
        raise ValueError(f"expected a subject or a comma list of subjects, got '{value}'")
    return tuple(dict.fromkeys(map(subject_filter, value.split(","))))


def whole_filter(value: str) -> str:
    """A filter that people give for subjects which they have in mind: each wildcard is a token."""
    found = subject_filter(value)
    if any(len(token) > 1 and {"*", ">"} & set(token) for token in found.split(".")):
        raise ValueError(
            f"'{found}' has a wildcard inside a token: '*' stands for a whole token ('orders.*'),"
            " never for a part of one; filter the rows by how their subjects begin"
        )
    return found


def whole_filters(value: str) -> tuple[str, ...]:
    """
    Such filters: one, or a comma list. In `multi_last` the server takes `a*` for a wildcard,
    elsewhere for a literal token.
    """
    return tuple(map(whole_filter, filters(value)))


def one_filter(value: str) -> str:
    """One subject filter; commas separate filters here as elsewhere, so several are a mistake."""
    found = filters(value)
    if len(found) > 1:
        raise ValueError(
            f"expected one filter, got {len(found)}: '{value}'; give one that covers them all, such"
            " as orders.>, and leave the others out with .where(…)"
        )
    return found[0]


def disjoint_filters(value: str) -> tuple[str, ...]:
    """
    Filters, in their order, of which no two match the same subject: what another one covers adds
    nothing and is left out; what only overlaps would be read twice, and JetStream refuses it too.
    """
    found = filters(value)
    widest = [
        filter_
        for filter_ in found
        if not any(filter_ != other and subjects.covers(other, filter_) for other in found)
    ]
    for at, filter_ in enumerate(widest):
        for other in widest[:at]:
            if subjects.overlaps(filter_, other):
                raise ValueError(
                    f"'{other}' and '{filter_}' have subjects in common, such as those of"
                    f" '{subjects.intersection(other, filter_)}'; give filters that have none, or"
                    " one that covers them all, and leave the others out with .where(…)"
                )
    return tuple(widest)


def publish_subject(value: str) -> str:
    """A subject without wildcards."""
    name = text(value)
    subjects.check_subject(name)
    return name


def partition_subject(value: str) -> str:
    """A filter with `{partition}` as one of its tokens."""
    name = text(value)
    subjects.check_filter(subjects.partition_wildcard(name))
    return name


def inbox_prefix(value: str) -> str:
    """A subject below which replies come, without its last dot."""
    name = text(value).removesuffix(".")
    subjects.check_subject(name)
    if name.startswith("$"):
        raise ValueError(f"expected a prefix of subjects that are nobody's, got '{value}'")
    if len(name.encode()) > _MAX_INBOX_PREFIX:
        raise ValueError(f"expected at most {_MAX_INBOX_PREFIX} bytes, got '{value}'")
    return name


def api_prefix(value: str) -> str:
    """A JetStream API prefix, without its last dot."""
    name = text(value).removesuffix(".")
    subjects.check_subject(name)
    return name


def domain(value: str) -> str:
    """A JetStream domain."""
    name = text(value)
    if "." in name:
        raise ValueError(f"expected a domain name without dots, got '{value}'")
    subjects.check_subject(name)
    return name


def priority_group(value: str) -> str:
    """A name the server takes for a priority group."""
    return _name(value, _GROUP_NAME, "1 to 16 of a-z A-Z 0-9 / _ = -")


def _name(value: str, pattern: str, what: str) -> str:
    name = text(value)
    if not re.fullmatch(pattern, name):
        raise ValueError(f"expected {what}, got '{value}'")
    return name


def choice(*words: str) -> Callable[[str], str]:
    """A parser of one of `words`."""

    def parse(value: str) -> str:
        if value.strip().lower() not in words:
            raise ValueError(f"expected {' or '.join(words)}, got '{value}'")
        return value.strip().lower()

    return parse


def moment(value: str) -> Moment:
    """An absolute time with its zone, or one before now."""
    text = value.strip()
    if text.startswith("-"):
        return Moment(text, before_now=timedelta(seconds=duration(text[1:])))
    try:
        absolute = datetime.fromisoformat(text)
        if absolute.tzinfo is not None:
            below = _BELOW_MICROS.search(text)
            return Moment(
                text,
                absolute=absolute.astimezone(UTC),
                nanoseconds=int(below[1].ljust(3, "0")) if below else 0,
            )
    except (ValueError, OverflowError):
        pass
    raise ValueError(
        f"expected RFC 3339 with its zone such as 2026-01-31T08:00:00Z, or -10m, got '{value}'"
    )


def at_moment(value: str) -> Starting:
    """A moment for all partitions."""
    return Starting(moment=moment(value))


def offsets(value: str) -> Starting:
    """
    `earliest`, `latest`, or sequences by partition, of several streams by stream and partition;
    also -2 and -1 for the words, as Kafka's source has them.
    """
    text = value.strip()
    if text.lower() in (EARLIEST, LATEST):
        return Starting(text.lower())
    expected = (
        f"expected earliest, latest, or JSON of partition to sequence"
        f' such as {{"0": 42, "1": "earliest"}}, of several streams such as'
        f' {{"ORDERS": {{"0": 42}}}}, got \'{value}\''
    )

    def read(where: Any) -> Any:
        word: Any = where.lower() if isinstance(where, str) else where
        is_number = isinstance(word, int) and not isinstance(word, bool)
        if is_number:
            word = _KAFKAS.get(word, word)
        if word not in (EARLIEST, LATEST) and not (is_number and word >= 0):
            raise ValueError(expected)
        return word

    def of(partitions: Any) -> dict[int, Any]:
        if not all(re.fullmatch(r"0|[1-9][0-9]{0,8}", key) for key in partitions):
            raise ValueError(expected)
        return {int(key): read(where) for key, where in partitions.items()}

    try:
        parsed = read_json(text)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict) or not parsed:
        raise ValueError(expected)
    if all(isinstance(where, dict) and where for where in parsed.values()):
        return Starting(streams={stream: of(where) for stream, where in parsed.items()})
    return Starting(sequences=of(parsed))
