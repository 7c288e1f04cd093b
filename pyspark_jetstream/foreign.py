"""
JSON from other programs: every fault in it is a `ValueError`.

What comes off the wire, or out of a file, may be anybody's. `read_json` gives the value of a text.
A *reader* gives such a value back if it is what the reader is for, else it raises a `ValueError`
that begins with the place, as in `.state.last_seq is 'x', no number from 0 to 9`.

A member that is null counts as missing, and a reader takes it out. Members that no reader is named
for are passed on as they are.
"""

from __future__ import annotations

import base64
import json
import reprlib
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, TypeAlias

Reader: TypeAlias = Callable[[Any], Any]


def read_json(
    text: str | bytes, object_pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None = None
) -> Any:
    """
    The value that the text is.

    Python's own reader ends with a `RecursionError` where brackets stand in too many brackets,
    which who expects bad text does not expect.

    Raises:
        ValueError: It is no JSON, or nested too deep to be read.
    """
    try:
        return json.loads(text, object_pairs_hook=object_pairs_hook)
    except RecursionError:
        raise ValueError("nested too deep") from None


def text(value: Any) -> str:
    """Reads text that can be encoded."""
    if not isinstance(value, str):
        raise _other(value, "no text")
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        raise _other(value, "no text that has an encoding") from None
    return value


def flag(value: Any) -> bool:
    """Reads true or false."""
    if not isinstance(value, bool):
        raise _other(value, "neither true nor false")
    return value


def time(value: Any) -> str:
    """Reads a time as RFC 3339 writes it, with its offset; `datetime.fromisoformat` takes it."""
    try:
        has_offset = datetime.fromisoformat(value).tzinfo is not None
    except (TypeError, ValueError):
        has_offset = False
    if not has_offset:
        raise _other(value, "no time with an offset")
    return str(value)


def base64_bytes(value: Any) -> bytes:
    """Reads the bytes that base64 stands for."""
    try:
        return base64.b64decode(text(value), validate=True)
    except ValueError:
        raise _other(value, "no base64") from None


def number(least: int, most: int) -> Reader:
    """A reader of whole numbers in this range."""

    def read(value: Any) -> int:
        if type(value) is not int or not least <= value <= most:
            raise _other(value, f"no number from {least} to {most}")
        return value

    return read


def each(reader: Reader, of: type[list[Any] | dict[str, Any]] = list) -> Reader:
    """A reader of lists, or of objects with any names, whose values this reader reads."""

    def read(value: Any) -> Any:
        if not isinstance(value, of):
            raise _other(value, "no list" if of is list else "no object")
        places: Any = value.items() if isinstance(value, dict) else enumerate(value)
        for place, inner in places:
            try:
                value[place] = reader(inner)
            except ValueError as error:
                raise ValueError(f"[{place!r:.100}]{error}") from None
        return value

    return read


def record(needed: Mapping[str, Reader], others: Mapping[str, Reader] | None = None) -> Reader:
    """A reader of objects that must have the members `needed`, and may have `others`."""
    readers = {**needed, **(others or {})}

    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _other(value, "no object")
        for name, reader in readers.items():
            if value.get(name) is None:
                value.pop(name, None)
                if name in needed:
                    raise ValueError(f".{name} is missing")
                continue
            try:
                value[name] = reader(value[name])
            except ValueError as error:
                raise ValueError(f".{name}{error}") from None
        return value

    return read


def _other(value: Any, what: str) -> ValueError:
    return ValueError(f" is {reprlib.repr(value)}, {what}")
