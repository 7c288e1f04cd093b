"""
One mapping rule over a whole column of subjects that its source matches.

Rule 1: the result is, row by row, that of `Rule.apply`, errors included.
Rule 2: no Python per row; `split` and the slices take it once for each distinct token.
Rule 3: this module performs no I/O and reads no clock.

A destination is compiled into as few parts as it takes. Tokens that follow each other in the
source as in the destination are one run of its bytes, literal tokens and the dots between included:
`flights.{{partition(2,1)}}.$1.$2` for the source `flights.*.*` is two parts, one of the two texts
`flights.0` and `flights.1`, and all of the subject from its first dot on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from ..arrays import BINARY, INT32, REST, STRING, digits, int32, scalar
from ..subjects import FAULTY, has_rest, is_literal, literal_beginning, tokens
from .columns import Part, Tokens, fnv1a32_of, joined, modulo
from .rule import Partition, Piece, Random, Rule, TokenCut, partition_of

MANY_NUMBERS: Final = 4096
"""Partitions up to which the texts of their numbers are kept ready."""

_SAMPLES: Final = 16
"""Number of subjects whose keys are compared for a common beginning."""


Draw = Callable[[Random], pa.Array]
"""The numbers drawn for the rows of a column, unsigned."""


@dataclass(frozen=True, slots=True)
class _Run:
    """Tokens of the subject from one index up to another (None: its end), dots between included."""

    first: int
    last: int | None
    dotted: bool = False
    """With the dot before them."""


@dataclass(frozen=True, slots=True)
class _Number:
    """A number below `span` between two texts."""

    of: Partition | Random
    span: int
    before: str = ""
    after: str = ""


_Element = str | _Run | _Number | TokenCut


class ColumnRule:
    """A rule, ready for columns."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self._parts = _parts(rule)
        self._texts: dict[_Number, pa.Array] = {}

    def __repr__(self) -> str:
        return f"<ColumnRule {self.rule.source} -> {self.rule.destination}>"

    def apply(self, subjects: pa.Array, tokens: Tokens, draw: Draw) -> pa.Array:
        """
        The destinations of some subjects.

        Args:
            subjects: text without nulls, at least one row.
            tokens: of these subjects.

        Raises:
            ValueError: A result is not a subject; names rule, subject and result.
        """
        rows = len(subjects)
        if self._parts == [_Run(0, None)]:
            return subjects
        parts = [
            column for part in self._parts for column in self._columns(part, subjects, tokens, draw)
        ]
        mapped = joined(parts, rows)
        if not self.rule.cuts:
            return pa.Array.from_buffers(STRING, rows, mapped.buffers())
        try:
            text = mapped.cast(STRING)
        except pa.ArrowInvalid as error:  # a character is cut in two
            raise self._first_fault(subjects, error) from None
        if pc.any(pc.match_substring_regex(text, FAULTY)).as_py():
            raise self._first_fault(subjects, None)
        return text

    def _first_fault(self, subjects: pa.Array, unknown: Exception | None) -> Exception:
        """The error of `Rule.apply` for the first subject that it cannot map."""
        for subject in subjects.to_pylist():
            try:
                self.rule.apply(subject, lambda _: "0")
            except ValueError as error:
                return error
        return unknown or ValueError(f"{self.rule} makes no subject of one of {len(subjects)}")

    def _columns(
        self, part: _Element, subjects: pa.Array, tokens: Tokens, draw: Draw
    ) -> list[Part]:
        if isinstance(part, str):
            return [_constant(part)]
        if isinstance(part, _Run):
            start = tokens.start_of(part.first)
            end = tokens.end if part.last is None else tokens.end_of(part.last - 1)
            return [tokens.run(pc.subtract(start, int32(1)) if part.dotted else start, end)]
        if isinstance(part, TokenCut):
            token = tokens.text(tokens.start_of(part.index), tokens.end_of(part.index))
            return [Part(_cut(part, token), 1)]
        if isinstance(part.of, Random):
            drawn = draw(part.of)
        else:
            drawn = modulo(self._hash(part.of, subjects, tokens), part.span)
        if part.span <= MANY_NUMBERS:
            return [Part(self._texts_of(part), drawn.view(INT32))]
        return [_constant(part.before), Part(digits(drawn), 1), _constant(part.after)]

    def _texts_of(self, part: _Number) -> pa.Array:
        if (texts := self._texts.get(part)) is None:
            numbered = [f"{part.before}{n}{part.after}".encode() for n in range(part.span)]
            texts = self._texts[part] = pa.array(numbered, BINARY)
        return texts

    def _hash(self, partition: Partition, subjects: pa.Array, tokens: Tokens) -> pa.Array:
        whole = not partition.indexes
        runs = [(tokens.start_of(i), tokens.end_of(i)) for i in partition.indexes]
        known = literal_beginning(self.rule.source)
        if not whole and partition.indexes[0] != known.count("."):
            return fnv1a32_of(tokens, runs)
        # Keys often begin alike. What all of them have in common is hashed once.
        common = _common_beginning(subjects, known)
        start = pc.add(tokens.begin, int32(len(common.encode())))
        runs[:1] = [(start, tokens.end if whole else runs[0][1])]
        return fnv1a32_of(tokens, runs, common if whole else common.removeprefix(known))


def _common_beginning(subjects: pa.Array, known: str) -> str:
    """
    Common beginning of all subjects, as far as some of them tell: `known`, or more of their next
    token.
    """
    sample = subjects.take(pa.array(range(0, len(subjects), len(subjects) // _SAMPLES + 1)))
    keys: list[str] = sorted(
        subject.removeprefix(known).partition(".")[0] for subject in sample.to_pylist()
    )
    pairs = zip(keys[0], keys[-1], strict=False)
    alike = next((n for n, (a, b) in enumerate(pairs) if a != b), len(keys[0]))
    if (more := keys[0][:alike]) and pc.all(pc.starts_with(subjects, known + more)).as_py():
        return known + more
    return known


def _parts(rule: Rule) -> list[_Element]:
    """The destination as texts, runs of the subject, numbers and cuts, with all its dots."""
    parts: list[_Element] = []
    text = ""

    def add(text: str) -> None:
        if text and parts and isinstance(number := parts[-1], _Number):
            parts[-1] = replace(number, after=text)
        elif text:
            parts.append(text)

    for at, piece in enumerate(_pieces(rule)):
        text += "." if at else ""
        if isinstance(piece, str):
            text += piece
            continue
        if isinstance(piece, _Number):
            piece, text = replace(piece, before=text), ""
        elif isinstance(piece, _Run) and at and piece.first:
            piece, text = replace(piece, dotted=True), text[:-1]
        add(text)
        parts.append(piece)
        text = ""
    add(text)
    return parts


def _pieces(rule: Rule) -> list[_Element]:
    """Parts of each destination token; tokens that stay together are one part."""
    source = tokens(rule.source)
    pieces: list[_Element] = []
    rest = [] if rule.rest is None else [_Run(rule.rest, None)]
    for piece in [*(_element(piece, rule) for piece in rule.pieces), *rest]:
        before = pieces[-1] if pieces else None
        if isinstance(piece, _Run):
            while pieces and piece.first and pieces[-1] == source[piece.first - 1]:
                pieces.pop()  # the literal token stands there in the source as well
                piece = replace(piece, first=piece.first - 1)
            if pieces and isinstance(before := pieces[-1], _Run) and before.last == piece.first:
                pieces.pop()
                piece = replace(piece, first=before.first)
        elif isinstance(before, _Run) and before.last is not None:
            if source[before.last : before.last + 1] == [piece]:
                pieces.pop()
                piece = replace(before, last=before.last + 1)
        pieces.append(piece)
    last = pieces[-1]
    if isinstance(last, _Run) and last.last == len(source) and not has_rest(rule.source):
        pieces[-1] = replace(last, last=None)
    return pieces


def _element(piece: Piece, rule: Rule) -> _Element:
    if isinstance(piece, str):
        return piece
    if isinstance(piece, Random):
        return _Number(piece, piece.span)
    if isinstance(piece, Partition):
        if is_literal(rule.source):
            return str(partition_of(rule.source, piece.count))
        return _Number(piece, piece.buckets)
    if isinstance(piece, TokenCut) and (piece.function == "split" or piece.size > 0):
        return piece
    return _Run(piece.index, piece.index + 1)


def _constant(text: str) -> Part:
    return Part(pa.array([text.encode()], BINARY), 0)


def _cut(cut: TokenCut, token: pa.Array) -> pa.Array:
    """The cut of each token, binary."""
    size = cut.size
    if cut.function == "left":
        return pc.binary_slice(token, 0, size)
    if cut.function == "right":
        return pc.binary_slice(token, -size, REST)
    if cut.function in ("splitFromLeft", "splitFromRight"):
        at = size if cut.function == "splitFromLeft" else -size
        both = pc.binary_slice(token, 0, at), pc.binary_slice(token, at, REST)
        halves = pc.binary_join_element_wise(*both, scalar("."))
        return pc.if_else(pc.greater(pc.binary_length(token), size), halves, token)
    distinct = token.dictionary_encode()
    texts = [cut.of(text.decode()) for text in distinct.dictionary.to_pylist()]
    made = pa.array([text.encode("utf-8", "surrogateescape") for text in texts], BINARY)
    return made.take(distinct.indices)
