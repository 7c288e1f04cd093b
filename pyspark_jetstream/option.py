"""
What an option is: where it applies, how its text is read, and one sentence for the reader.

The table of all of them is in `optiontable`; those of a write under pressure are in `pressure`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["Kind", "Option", "everywhere", "only", "reads"]

Kind = Literal["stream", "range", "sink"]


@dataclass(frozen=True, slots=True)
class Option:
    """One option: where it applies, how its text is read, and one sentence for the reader."""

    name: str
    kinds: frozenset[str]
    parse: Callable[[str], Any]
    default: str
    doc: str
    secret: bool = False


def everywhere(
    name: str, parse: Callable[[str], Any], default: str, doc: str, secret: bool = False
) -> Option:
    """An option of reads and writes."""
    return Option(name, frozenset({"stream", "range", "sink"}), parse, default, doc, secret)


def reads(name: str, parse: Callable[[str], Any], default: str, doc: str) -> Option:
    """An option of streaming and batch reads."""
    return Option(name, frozenset({"stream", "range"}), parse, default, doc)


def only(kind: Kind, name: str, parse: Callable[[str], Any], default: str, doc: str) -> Option:
    """An option of one kind."""
    return Option(name, frozenset({kind}), parse, default, doc)
