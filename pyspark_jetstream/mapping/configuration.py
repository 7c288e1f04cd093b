"""
The text of a mapping: JSON, or nats-server's own configuration language.

Rule 1: what nats-server 2.15.1 reads as its `mappings` is read the same here (src: conf/lex.go,
conf/parse.go, opts.go; `tests/live` gives both the same files).
Rule 2: this module performs no I/O and knows no rules: it finds what is written behind which
source. So it follows no `include`: one where mappings may stand is an error. It knows the variables
of the text alone, not those of the environment: the mappings must need no other.

Three forms are read:

* JSON: `{"orders.*": "orders.{{partition(8,1)}}.$1"}`;
* a `mappings { … }` block, by itself or anywhere in a server's configuration: at its top, or in
  one of its `accounts` (two blocks are an error, because only one can be meant);
* such a block without its name: `{ orders.*: "orders.{{partition(8,1)}}.$1" }`.

The language: keys and text, quoted or not; `:`, `=` or white space between a key and its value;
an entry ends at a comma, a semicolon or the end of its line; `#` and `//` begin a comment; lists
stand in `[ ]`. Double-quoted text has escapes, keys have none. Unquoted text ends at white space,
`,`, `;`, `]` and `}`: a destination with functions has to be quoted, and so has one that begins
with `$`, which is a variable otherwise.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from ..foreign import read_json
from .routes import Members, kind

_BLOCK_NAMES: Final = frozenset({"mappings", "maps"})
_ACCOUNTS: Final = "accounts"
_INCLUDE: Final = "include"
_MAX_DEPTH: Final = 100

_GAP: Final = re.compile(r"(?:\s+|#[^\r\n]*|//[^\r\n]*)*")
_END_OF_ENTRY: Final = re.compile(r"[ \t]*(?:(?:#|//)[^\r\n]*)?([,;\r\n]|(?=[\]}])|\Z)")
_KEY: Final = re.compile(r"'([^']*)'|\"([^\"]*)\"|([^\s:='\"{}\[\],;][^\s:=]*)")
_PATH: Final = re.compile(r"'[^']*'|\"[^\"]*\"|[^\s;}]*")
_SEPARATOR: Final = re.compile(r"\s*[:=]?\s*")
_WORD: Final = re.compile(r"(?:\\.|[^ \t\r\n\x00,;\]}'\\])*")
_QUOTED: Final = re.compile(r"'([^']*)'")
_DOUBLE_QUOTED: Final = re.compile(r'"((?:\\.|[^"\\])*)"', re.DOTALL)
_LONG_TEXT: Final = re.compile(r"\((.*?\n)\)(?=\n|\Z)", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(?:x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_ESCAPES: Final = {"t": b"\t", "n": b"\n", "r": b"\r", '"': b'"', "\\": b"\\"}
_DATE: Final = re.compile(r"[0-9]{4}-(?:[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z)?")
_ADDRESS: Final = re.compile(r"[0-9]+\.[0-9]+\.[0-9.:-]*")
_FLOAT: Final = re.compile(r"-?[0-9]+\.[0-9]+")
_INTEGER: Final = re.compile(r"(-?[0-9]+)(?:([kmgtpe])(i?b?))?(?=[ \t\r\n,;\]}]|\Z)", re.IGNORECASE)
_NO_NUMBER: Final = re.compile(r"-|[0-9]+[.-]|\.")
_POWERS: Final = " kmgtpe"
_BOOLEANS: Final = {"true": 1, "yes": 1, "on": 1, "false": 0, "no": 0, "off": 0}
_BCRYPT: Final = "$2a$"
"""Text that begins so is a password's hash, not a variable."""


@dataclass(frozen=True, slots=True)
class _Reference:
    """An include or an unknown variable: the text only refers to its value."""

    what: str
    advice: str


def read_mapping(text: str) -> Members:
    """
    Values behind each source, in order: text, numbers, lists and `Members`.

    Raises:
        ValueError: The text has none of the forms, no mappings, or those of two accounts.
    """
    members, braced = _json(text) or _ConfigurationParser(text).top()
    blocks = _blocks("", members)
    for name, accounts in members:
        if name.lower() == _ACCOUNTS and isinstance(accounts, Members):
            _check_includes(accounts)
            for account, body in accounts:
                if isinstance(body, Members):
                    blocks += _blocks(f"{name}.{account}.", body)
    if len(blocks) > 1:
        where = " and ".join(name for name, _ in blocks)
        raise ValueError(f"there are {where}, and only one can be meant; give that block alone")
    if not blocks and not braced:
        raise ValueError("there is no mappings { … } in it")
    rules = blocks[0][1] if blocks else members
    _check_complete(rules)
    return rules


def _json(text: str) -> tuple[Members, bool] | None:
    """The members of a JSON object, and that it stands in braces; None for what is not JSON."""
    try:
        value = read_json(text, object_pairs_hook=Members)
    except ValueError:
        return None
    if not isinstance(value, Members):
        raise ValueError(f"it is {kind(value)}")
    return value, True


def _blocks(path: str, members: Members) -> list[tuple[str, Members]]:
    """The blocks of rules among these members of a server's configuration, with their names."""
    _check_includes(members)
    return [
        (path + name, value)
        for name, value in members
        if name.lower() in _BLOCK_NAMES and _is_block(value)
    ]


def _check_includes(members: Members) -> None:
    """Refuses an `include`, which could bring mappings."""
    _check_complete([value for name, value in members if name.lower() == _INCLUDE])


def _is_block(value: Any) -> bool:
    """Whether this is a block of rules; the destination of a source called so has a weight."""
    return isinstance(value, Members) and "weight" not in {name.lower() for name, _ in value}


def _check_complete(value: Any) -> None:
    """
    Checks that the text is all there is: no other file, no variable that it does not set.

    Raises:
        ValueError: It refers to another file or to an unknown variable.
    """
    if isinstance(value, _Reference):
        raise ValueError(f"{value.what} is not followed; {value.advice}")
    if isinstance(value, list):
        for entry in value:
            _check_complete(entry[1] if isinstance(value, Members) else entry)


class _ConfigurationParser:
    """Parses a text in nats-server's configuration language, once, from its beginning."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._scopes: list[Members] = []
        self._depth = 0

    def top(self) -> tuple[Members, bool]:
        """The members of the text, and whether they stand in braces."""
        self._match(_GAP)
        braced = self._took("{")
        members = self._members("}" if braced else "")
        self._match(_GAP)
        if self._at < len(self._text):
            raise self._fail("expected nothing more")
        return members, braced

    def _members(self, closing: str) -> Members:
        members = Members()
        self._scopes.append(members)
        while self._match(_GAP) and not (closing and self._took(closing)):
            if self._at == len(self._text):
                if closing:
                    raise self._fail(f"expected {closing!r}")
                break
            members.append(self._member())
            self._end_of_entry()
        self._scopes.pop()
        return members

    def _member(self) -> tuple[str, Any]:
        match = self._match(_KEY)
        if match is None:
            raise self._fail("expected a key")
        single, double, plain = match.groups()
        key = plain or single or double or ""
        separator = self._match(_SEPARATOR)
        if plain and plain.lower() == _INCLUDE and separator and separator[0].isspace():
            path = self._match(_PATH)
            name = path[0].strip("'\"") if path else ""
            return key, _Reference(f"include {name!r}", "write here what it has")
        return key, self._value()

    def _list(self) -> list[Any]:
        values: list[Any] = []
        while self._match(_GAP) and not self._took("]"):
            if self._at == len(self._text):
                raise self._fail("expected ']'")
            values.append(self._value())
            self._end_of_entry()
        return values

    def _value(self) -> Any:
        first = self._text[self._at : self._at + 1]
        if first in "{[" and first:
            self._at += 1
            self._depth += 1
            if self._depth > _MAX_DEPTH:
                raise self._fail("too many blocks inside of blocks")
            value = self._members("}") if first == "{" else self._list()
            self._depth -= 1
            return value
        if first in "'\"(" and first:
            pattern = {"'": _QUOTED, '"': _DOUBLE_QUOTED, "(": _LONG_TEXT}[first]
            match = self._match(pattern)
            if match is None:
                raise self._fail(f"this {first} is not closed")
            return self._unescaped(match[1]) if first == '"' else match[1]
        if first in "0123456789-." and first:
            return self._number()
        return self._word()

    def _number(self) -> Any:
        """A number, a date, or text that begins with a digit."""
        if match := self._match(_DATE):
            try:
                return datetime.fromisoformat(match[0])
            except ValueError:
                raise self._fail("expected a date as 2026-01-31T08:00:00Z") from None
        if match := self._match(_ADDRESS):
            return match[0]
        if match := self._match(_FLOAT):
            return float(match[0])
        if match := self._match(_INTEGER):
            power = _POWERS.index((match[2] or " ").lower())
            return int(match[1]) * (1024 if match[3] else 1000) ** power
        if _NO_NUMBER.match(self._text, self._at):
            raise self._fail("expected a number; put text in quotes")
        return self._word()

    def _word(self) -> Any:
        match = self._match(_WORD)
        word = match[0] if match else ""
        if not word:
            raise self._fail("expected a value")
        if "\\" in word:
            return self._unescaped(word)
        if word.lower() in _BOOLEANS:
            return bool(_BOOLEANS[word.lower()])
        if word.startswith("$") and not word.startswith(_BCRYPT):
            return self._variable(word[1:])
        return word

    def _variable(self, name: str) -> Any:
        for scope in reversed(self._scopes):
            for key, value in reversed(scope):
                if key == name:
                    return value
        return _Reference(f"the variable ${name}", "if it is meant as text, put it in quotes")

    def _unescaped(self, text: str) -> str:
        if "\\" not in text:
            return text
        parts: list[bytes] = []
        at = 0
        for escape in _ESCAPE.finditer(text):
            digits, letter = escape.groups()
            if digits is None and letter not in _ESCAPES:
                raise self._fail(rf"there is no escape \{letter}")
            parts += (
                text[at : escape.start()].encode("utf-8", "surrogatepass"),
                (_ESCAPES[letter] if digits is None else bytes.fromhex(digits)),
            )
            at = escape.end()
        raw = b"".join(parts) + text[at:].encode("utf-8", "surrogatepass")
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise self._fail("the escapes make no UTF-8") from None

    def _end_of_entry(self) -> None:
        if self._match(_END_OF_ENTRY) is None:
            raise self._fail("expected a comma or the end of the line")

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self._text, self._at)
        if match is not None:
            self._at = match.end()
        return match

    def _took(self, text: str) -> bool:
        if not self._text.startswith(text, self._at):
            return False
        self._at += len(text)
        return True

    def _fail(self, problem: str) -> ValueError:
        line = self._text.count("\n", 0, self._at) + 1
        rest = self._text[self._at :].split("\n", 1)[0]
        here = f"before {rest[:20]!r}" if rest else "at its end"
        return ValueError(f"line {line}, {here}: {problem}")
