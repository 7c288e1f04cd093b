"""
Subjects and filters: tokens, wildcards, matching, and the partition token of a template.

Rule 1: nothing else in the package knows what `*` and `>` mean.
Rule 2: this module imports nothing of ours, performs no I/O and reads no clock.

A *subject* is literal: dot-separated, non-empty tokens.
A *filter* may also hold `*` (exactly one token) and, as its last token, `>` (one token or more).
Only a whole token is a wildcard: `a*` and `>b` are literal tokens, as for the server.
A *template* is a filter with the token `{partition}` once, such as `flights.{partition}.>`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

ANY: Final[str] = "*"
"""The wildcard for exactly one token."""

REST: Final[str] = ">"
"""The wildcard for one token or more; only the last token of a filter may be it."""

PARTITION: Final[str] = "{partition}"
"""The token of a template that stands for the partition number."""

# The protocol separates its fields by ASCII white space; the other controls are legal to the
# server but never to us. Unicode spaces are ordinary characters of a token, as for the server.
# A lone surrogate has no UTF-8 form.
_FORBIDDEN: Final = "\x00-\x20\x7f\ud800-\udfff"
_BAD_CHARACTER: Final = re.compile(f"[{_FORBIDDEN}]")
_INVALID_BYTE: Final = re.compile("[\udc80-\udcff]")
_TOKEN_PATTERN: Final = {ANY: r"[^.]+", REST: r"[^.]+(?:\.[^.]+)*"}
_WELL_FORMED: Final = re.compile(f"[^.{_FORBIDDEN}]+(?:\\.[^.{_FORBIDDEN}]+)*")

FAULTY: Final = r"^$|^\.|\.$|\.\.|[\x00-\x20\x7f]|(^|\.)[*>](\.|$)"
"""Finds in a text what makes it no subject, as `subject_fault` does; for Arrow's kernels (RE2)."""


MAX_SUBJECT_BYTES: Final = 4096 - 192
"""
Limit of a publish: the server's default `max_control_line`, as a longer HPUB line makes it cut the
connection, but for the verb, the reply subject and the sizes.
"""

FOREIGN: Final = (
    "$JS.", "$SYS.", "$SRV.", "_INBOX.",
    "$KV.SPARK_LEDGER.",
)  # fmt: skip
"""
Beginnings of subjects on which no row may go: a message there is a command to the server or to
services, somebody's answer, or a record by which queries know what is written (`ledger`).
"""


def reserved(*names: str) -> str:
    """
    Finds subjects on which no row may go, for `re` and for RE2: those of `FOREIGN`, and of each of
    these names what is below it; the name itself, too, unless a dot ends it.
    """
    parts = [re.escape(name) + ("" if name.endswith(".") else r"(?:\.|$)") for name in names]
    return f"^(?:{'|'.join([*map(re.escape, FOREIGN), *parts])})"


def tokens(subject: str) -> list[str]:
    """The dot-separated parts of a subject or filter, in order."""
    return subject.split(".")


def raw(subject: bytes) -> str:
    """
    A subject as it is stored, for filters and partitions: a byte that is none of a character is
    half of a surrogate pair, which no sound text has.
    """
    return subject.decode("utf-8", "surrogateescape")


def readable(subject: bytes) -> str:
    """
    A subject as text: U+FFFD for each byte that is none of a character, as in the server's JSON.
    Subjects that differ may become the same.
    """
    return _INVALID_BYTE.sub("\ufffd", raw(subject))


def literal_beginning(filter: str) -> str:
    """The text that every subject the filter matches begins with, up to its first wildcard."""
    known: list[str] = []
    for token in filter.split("."):
        if token in (ANY, REST):
            return "".join(f"{literal}." for literal in known)
        known.append(token)
    return filter


def is_literal(subject: str) -> bool:
    """Whether no token is a wildcard. Says nothing about validity otherwise."""
    if ANY not in subject and REST not in subject:
        return True
    return not any(token in (ANY, REST) for token in tokens(subject))


def has_rest(filter: str) -> bool:
    """Whether the last token is `>`."""
    return filter == REST or filter.endswith("." + REST)


def wildcard_positions(filter: str) -> tuple[int, ...]:
    """The token index of each `*`, in order: the first is what `$1` refers to."""
    return tuple(i for i, token in enumerate(tokens(filter)) if token == ANY)


def specificity(filter: str) -> tuple[int, ...]:
    """
    A sort key that puts the more specific filter first.

    At the first token where two filters differ in kind, literal comes before `*` before `>`.
    A filter that another one covers therefore always precedes it, and two different filters
    with the same key have no subject in common.
    """
    return tuple(2 if t == REST else 1 if t == ANY else 0 for t in tokens(filter))


class FilterShape(NamedTuple):
    """Positions of a filter's wildcards."""

    length: int
    """Tokens, the `>` not among them."""
    any: tuple[int, ...]
    """The places of `*`."""
    rest: bool
    """Whether it ends in `>`."""

    @classmethod
    def of(cls, filter: str) -> FilterShape:
        """The shape of a filter."""
        rest = has_rest(filter)
        return cls(len(tokens(filter)) - rest, wildcard_positions(filter), rest)

    def filter(self, parts: Sequence[str]) -> str | None:
        """The only filter of this shape that can match a subject of these tokens."""
        if len(parts) <= self.length if self.rest else len(parts) != self.length:
            return None
        names = list(parts[: self.length])
        for place in self.any:
            names[place] = ANY
        return ".".join((*names, REST) if self.rest else names)


def matcher(filter: str) -> Callable[[str], bool]:
    """
    Compile a filter into a predicate on literal subjects.

    A subject with an empty token matches no wildcard filter, not even `>`.
    """
    if is_literal(filter):
        return filter.__eq__
    fullmatch = re.compile(pattern(filter)).fullmatch
    return lambda subject: fullmatch(subject) is not None


def pattern(filter: str) -> str:
    """The filter as a regular expression of all of a subject, for `re` and for RE2."""
    parts = [_TOKEN_PATTERN.get(token) or re.escape(token) for token in tokens(filter)]
    return r"\.".join(parts)


_cached_matcher = lru_cache(maxsize=1024)(matcher)


def matches(filter: str, subject: str) -> bool:
    """Whether the filter selects this literal subject. For many subjects take `matcher`."""
    return _cached_matcher(filter)(subject)


def intersection(a: str, b: str) -> str | None:
    """The filter of the subjects that both match; None where there are none."""
    left, right = tokens(a), tokens(b)
    both: list[str] = []
    for i in range(max(len(left), len(right))):
        if i >= len(left) or i >= len(right):
            return None
        if left[i] == REST:
            return ".".join(both + right[i:])
        if right[i] == REST:
            return ".".join(both + left[i:])
        if left[i] != right[i] and ANY not in (left[i], right[i]):
            return None
        both.append(right[i] if left[i] == ANY else left[i])
    return ".".join(both)


def covers(filter: str, other_filter: str) -> bool:
    """Whether every subject that `other_filter` matches is matched by `filter`."""
    return intersection(filter, other_filter) == other_filter


def overlaps(a: str, b: str) -> bool:
    """Whether some subject is matched by both filters."""
    return intersection(a, b) is not None


def subject_fault(subject: str) -> str | None:
    """Fault of a subject on which nothing can be published, or None if something can."""
    if _WELL_FORMED.fullmatch(subject) is None:
        return _malformed(subject)
    if not is_literal(subject):
        for number, token in enumerate(tokens(subject), 1):
            if token in (ANY, REST):
                return f"token {number} is the wildcard {token!r}; a publish subject is literal"
    return None


def filter_fault(filter: str) -> str | None:
    """Fault of a text that is no filter, or None. A literal subject is a filter, too."""
    if _WELL_FORMED.fullmatch(filter) is None:
        return _malformed(filter)
    parts = tokens(filter)
    if REST in parts[:-1]:
        return f"token {parts.index(REST) + 1} is '>', which may only be the last token"
    return None


def bucket_prefix(bucket: str) -> str:
    """Prefix of keys in the subjects of a Key-Value bucket (ADR-8)."""
    return f"$KV.{bucket}."


def check_subject(subject: str) -> None:
    """
    Accept a subject that can be published on.

    Raises:
        ValueError: The subject is empty, has an empty token, white space, a control character,
            a wildcard or a lone surrogate; the message says which, and in which token.
    """
    if (fault := subject_fault(subject)) is not None:
        raise ValueError(f"invalid subject {subject!r}: {fault}")


def check_filter(filter: str) -> None:
    """
    Accept a filter (or a literal subject).

    Raises:
        ValueError: As for `check_subject`, except that `*` may be any token and `>` the last.
    """
    if (fault := filter_fault(filter)) is not None:
        raise ValueError(f"invalid subject filter {filter!r}: {fault}")


def partition_token(template: str) -> int:
    """
    The index (from 0) of the `{partition}` token.

    Raises:
        ValueError: `{partition}` is not exactly once a token of its own, or the template is
            not a filter otherwise.
    """
    parts = tokens(template)
    if parts.count(PARTITION) != 1 or template.count(PARTITION) != 1:
        raise ValueError(
            f"invalid partition template {template!r}: expected exactly one token {PARTITION},"
            " as in 'orders.{partition}.>'"
        )
    if (fault := filter_fault(template)) is not None:
        raise ValueError(f"invalid partition template {template!r}: {fault}")
    return parts.index(PARTITION)


def partition_filter(template: str, partition: int) -> str:
    """The filter of one partition: `flights.3.>` for `flights.{partition}.>` and 3."""
    if partition < 0:
        raise ValueError(f"partition of {template!r}: expected 0 or more, got {partition}")
    return with_partition(template, str(partition))


def partition_wildcard(template: str) -> str:
    """The filter of all partitions: `flights.*.>` for `flights.{partition}.>`."""
    return with_partition(template, ANY)


def with_partition(template: str, token: str) -> str:
    """The template with another token in the partition's place."""
    parts = tokens(template)
    parts[partition_token(template)] = token
    return ".".join(parts)


def _malformed(text: str) -> str:
    """The fault in the tokens of a text that is not `_WELL_FORMED`."""
    if not text:
        return "the subject is empty"
    match = _BAD_CHARACTER.search(text)
    if match is None:
        return f"token {tokens(text).index('') + 1} is empty"
    number = text.count(".", 0, match.start()) + 1
    return f"token {number} {tokens(text)[number - 1]!r} contains {_name(match[0])}"


def _name(character: str) -> str:
    if character in "\t\n\v\f\r ":
        return "white space"
    if character >= "\ud800":
        return "a lone surrogate, which has no UTF-8 form"
    return f"the control character {character!r}"
