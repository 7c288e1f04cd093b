"""
The text of a mapping: JSON, or one `mappings { … }` block of nats-server's configuration.

Rule 1: this module performs no I/O and knows no rules; it finds what is written behind a source.

In a block, keys and text may be quoted or not; `:`, `=` or white space stands between a key and its
value, a comma, a semicolon or the end of the line between entries; `#` and `//` begin a comment.
What else the server's language has (variables, includes, escapes, whole files) is an error. A
destination with functions has to be quoted, and so has one that begins with `$` or a digit.
"""

from __future__ import annotations

import re
from typing import Any, Final

from ..foreign import read_json
from .routes import Members, shown

_GAP: Final = re.compile(r"(?:\s+|#[^\r\n]*|//[^\r\n]*)*")
_BLOCK: Final = re.compile(rf"{_GAP.pattern}(?:(?:mappings|maps)\s*[:=]?\s*)?\{{", re.IGNORECASE)
_QUOTED: Final = r"""'([^']*)'|"([^"\\]*)\""""
_KEY: Final = re.compile(rf"{_QUOTED}|([^\s:='\"{{}}\[\],;][^\s:=]*)")
_SEPARATOR: Final = re.compile(r"\s*[:=]?\s*")
_VALUE: Final = re.compile(rf"{_QUOTED}|([^\s{{}}\[\],;'\"\\$(.-][^\s,;\]}}'\\]*)")
_END_OF_ENTRY: Final = re.compile(r"[ \t]*(?:(?:#|//)[^\r\n]*)?([,;\r\n]|(?=[\]}])|\Z)")
_WHOLE: Final = re.compile(r"-?[0-9]+")
_PERCENT: Final = re.compile(r"[0-9]+%")
_DEPTH: Final = 4
"""A block, a list, an entry of it; more is none."""
_CONSTANTS: Final = dict.fromkeys(("true", "yes", "on"), True) | dict.fromkeys(
    ("false", "no", "off"), False
)


def read_mapping(text: str) -> Members:
    """
    Values behind each source, in order: text, numbers, lists and `Members`.

    Raises:
        ValueError: The text is neither.
    """
    try:
        value = read_json(text, object_pairs_hook=Members)
    except ValueError:
        return _Block(text).members()
    if not isinstance(value, Members):
        raise ValueError(f"it is {shown(value)}")
    return value


class _Block:
    """Reads a block, once, from its beginning."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def members(self) -> Members:
        """The members of the block, which is all there is."""
        if self._match(_BLOCK) is None:
            raise ValueError("it is neither")
        members = self._members(_DEPTH)
        self._match(_GAP)
        if self._at < len(self._text):
            raise self._fail("expected nothing more")
        return members

    def _members(self, depth: int) -> Members:
        members = Members()
        while not self._took("}"):
            key = self._match(_KEY)
            if key is None:
                raise self._fail("expected a key, or '}'")
            self._match(_SEPARATOR)
            members.append((_text(key), self._value(depth)))
            self._end_of_entry()
        return members

    def _list(self, depth: int) -> list[Any]:
        values: list[Any] = []
        while not self._took("]"):
            values.append(self._value(depth))
            self._end_of_entry()
        return values

    def _value(self, depth: int) -> Any:
        if depth and self._took("{"):
            return self._members(depth - 1)
        if depth and self._took("["):
            return self._list(depth - 1)
        at = self._at
        value = self._match(_VALUE)
        if value is None:
            raise self._fail("expected a value; what is not plain text, put in quotes")
        text = _text(value)
        if value.lastindex != 3:
            return text
        if text.lower() in _CONSTANTS:  # for the server, these are no text
            return _CONSTANTS[text.lower()]
        if text[0] in "0123456789" and not _PERCENT.fullmatch(text):
            if not _WHOLE.fullmatch(text):
                self._at = at
                raise self._fail("expected a whole number; put text in quotes")
            return int(text)
        return text

    def _end_of_entry(self) -> None:
        if self._match(_END_OF_ENTRY) is None:
            raise self._fail("expected a comma or the end of the line")

    def _took(self, mark: str) -> bool:
        self._match(_GAP)
        is_there = self._text.startswith(mark, self._at)
        self._at += is_there
        return is_there

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self._text, self._at)
        self._at = match.end() if match is not None else self._at
        return match

    def _fail(self, problem: str) -> ValueError:
        line = self._text.count("\n", 0, self._at) + 1
        rest = self._text[self._at :].split("\n", 1)[0]
        here = f"before {rest[:20]!r}" if rest else "at its end"
        return ValueError(f"line {line}, {here}: {problem}")


def _text(match: re.Match[str]) -> str:
    return match[match.lastindex or 0]
