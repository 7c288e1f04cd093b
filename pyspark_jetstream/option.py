"""
What an option is: where it applies, how its text is read, and one sentence for the reader.

Each wing has the rows of its own options; the table of all of them is in `options`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from .errors import OptionError

__all__ = [
    "Kind",
    "Option",
    "SPARKS_OWN",
    "everywhere",
    "exclusive",
    "needs",
    "only",
    "parsed",
    "reads",
    "typed",
]

Kind = Literal["stream", "range", "sink"]


_WHERE: Final = {"stream": "spark.readStream", "range": "spark.read", "sink": "a write"}


SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname", "path"})
"""Options that Spark itself puts beside ours."""


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


def typed(options: Mapping[str, str], kind: Kind, table: Sequence[Option]) -> dict[str, Any]:
    """
    Values by canonical name; only those that were given. `table` has the options there are.

    Raises:
        OptionError: An option is unknown or belongs elsewhere, or its text cannot be read.
    """
    # `subject` is two options, a filter of reads and a subject of writes: the kind asked for wins.
    ordered = sorted(table, key=lambda option: kind in option.kinds)
    known = {option.name.lower(): option for option in ordered}
    values: dict[str, Any] = {}
    for key, text in options.items():
        name = key.lower()
        if name in SPARKS_OWN:
            if name == "path" and text:
                raise OptionError(
                    "path", "a stream has no path; use load() without one, and option stream"
                )
            continue
        option = known.get(name)
        if option is None:
            candidates = {n: o.name for n, o in known.items() if kind in o.kinds}
            near = difflib.get_close_matches(name, candidates, n=1, cutoff=0.5)
            hint = f"; did you mean '{candidates[near[0]]}'?" if near else ""
            raise OptionError(key, f"unknown option{hint}")
        if kind not in option.kinds:
            places = " and ".join(sorted(_WHERE[k] for k in option.kinds))
            raise OptionError(option.name, f"applies to {places}, not to {_WHERE[kind]}")
        if text is None:
            raise OptionError(option.name, "expected a value, got null")
        try:
            values[option.name] = option.parse(str(text))
        except OptionError:
            raise
        except ValueError as error:
            raise OptionError(option.name, str(error)) from None
    return values


def exclusive(values: Mapping[str, Any], *names: str) -> None:
    given = [name for name in names if name in values]
    if len(given) > 1:
        raise OptionError(given[1], f"contradicts option '{given[0]}'; give one of them")


def needs(values: Mapping[str, Any], name: str, *others: str) -> None:
    for other in others:
        if name in values and other not in values:
            raise OptionError(name, f"needs option '{other}' too")


def parsed(name: str, parse: Callable[[Any], Any], value: Any) -> Any:
    try:
        return parse(value)
    except ValueError as error:
        raise OptionError(name, str(error)) from None
