"""
One option: where it applies, how its text is read, and its default.

Each wing has the rows of its own options; the table of all of them is in `options`.

Rule 1: a default is said once, as the text in the option's row. `Values` reads it where nothing is
given, and fills the dataclasses by the fields that rows name; these have no defaults of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from .errors import OptionError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    T = TypeVar("T", bound=DataclassInstance)

Kind = Literal["stream", "range", "sink"]


Others = Callable[[], "tuple[Option, ...]"]
"""Gives the options of other kinds, which it may have to import."""

_WHERE: Final = {"stream": "spark.readStream", "range": "spark.read", "sink": "a write"}


SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname", "path"})
"""Options that Spark itself puts beside ours."""


_ALIKE: Final = 0.65
"""Least similarity of a misspelt name; below it, most names belong to something else."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option: how its text is read, and one sentence for the reader."""

    name: str
    field: str
    """The dataclass field that the option fills; "" where a wing decides."""
    parse: Callable[[str], Any]
    default: str
    """Default in a user's spelling; "" for none."""
    doc: str
    absent: Any = None
    """The value where nothing is given and there is no default."""
    secret: bool = False
    kinds: frozenset[str] = frozenset()
    """Kinds of reads and writes that have the option; a `table` sets it for all its rows."""

    @property
    def value(self) -> Any:
        """The default's value."""
        return self.parse(self.default) if self.default else self.absent


def table(kinds: str, *rows: Option) -> tuple[Option, ...]:
    """The rows of options that apply to these kinds, such as "stream range"."""
    return tuple(replace(row, kinds=frozenset(kinds.split())) for row in rows)


class Values:
    """
    Typed values of the options of one kind, by name.

    `name in values` says whether one was given; `values[name]` is what was, else its default.
    """

    __slots__ = ("_given", "_rows")

    def __init__(
        self, kind: Kind, rows: Iterable[Option], given: Mapping[str, Any] | None = None
    ) -> None:
        self._rows = {row.name: row for row in rows if kind in row.kinds}
        self._given = dict(given or {})

    def __contains__(self, name: str) -> bool:
        return name in self._given

    def __getitem__(self, name: str) -> Any:
        return self._given[name] if name in self._given else self._rows[name].value

    def given(self, name: str) -> Any:
        """The user's value; None where there is none, whatever the default is."""
        return self._given.get(name)

    def also(self, **given: Any) -> Values:
        """These, and others as if they were given."""
        values = Values.__new__(Values)
        values._rows, values._given = self._rows, self._given | given
        return values

    def fill(self, kind: type[T], **others: Any) -> T:
        """A dataclass: fields that rows fill, and others, as what options mean together."""
        names = {field.name for field in fields(kind)} - others.keys()
        filled = {row.field: self[row.name] for row in self._rows.values() if row.field in names}
        return kind(**filled, **others)


def typed(
    options: Mapping[str, str], kind: Kind, rows: Sequence[Option], others: Others = tuple
) -> Values:
    """
    The values of the texts that were given.

    Args:
        rows: the options of this kind.
        others: gives those of others, if an option is none of `rows`: what is wrong with it is told
            by all that there is.

    Raises:
        OptionError: Options are unknown or belong elsewhere, or their text cannot be read: all of
            them.
    """
    names = {row.name.lower() for row in rows} | SPARKS_OWN
    if any(name.lower() not in names for name in options):
        rows = (*rows, *others())
    # `subject` is two options, a filter of reads and a subject of writes: the kind asked for wins.
    ordered = sorted(rows, key=lambda option: kind in option.kinds)
    known = {option.name.lower(): option for option in ordered}
    values: dict[str, Any] = {}
    mistakes: list[OptionError] = []
    for key, text in options.items():
        option = known.get(key.lower())
        if key.lower() in SPARKS_OWN and (option is None or kind not in option.kinds):
            if key.lower() == "path" and text:
                why = "a stream has no path; use load() without one, and option stream"
                mistakes.append(OptionError("path", why))
            continue
        try:
            meant = _meant(key, known, kind)
            values[meant.name] = parsed(meant.name, partial(_read, meant), text)
        except OptionError as mistake:
            mistakes.append(mistake)
    if mistakes:
        raise all_of(mistakes)
    return Values(kind, rows, values)


def all_of(mistakes: Sequence[OptionError]) -> OptionError:
    """One error for several mistakes, each said once."""
    first, *others = dict.fromkeys(
        (each.option, each.reason) for mistake in mistakes for each in (mistake, *mistake.others)
    )
    return OptionError(*first, others=tuple(OptionError(*other) for other in others))


def _meant(key: str, known: Mapping[str, Option], kind: Kind) -> Option:
    option = known.get(key.lower())
    if option is not None and kind in option.kinds:
        return option
    from .othernames import said_of  # for mistakes alone

    said = said_of(key, kind)
    if option is None:
        near = said or _near(key.lower(), known, kind)
        raise OptionError(key, f"unknown option; {near}")
    places = " and ".join(sorted(_WHERE[k] for k in option.kinds))
    hint = f"; {said}" if said else ""
    raise OptionError(option.name, f"applies to {places}, not to {_WHERE[kind]}{hint}")


def _read(option: Option, text: str | None) -> Any:
    if text is None:
        raise ValueError("expected a value, got null")
    return option.parse(str(text))


def _near(name: str, known: Mapping[str, Option], kind: Kind) -> str:
    """The option that is spelled most alike; of both reads, for `load()` does not know which."""
    import difflib  # as above

    kinds = {kind} if kind == "sink" else {"stream", "range"}
    candidates = {each: option.name for each, option in known.items() if option.kinds & kinds}
    near = difflib.get_close_matches(name, candidates, n=1, cutoff=_ALIKE)
    if near:
        return f"did you mean '{candidates[near[0]]}'?"
    return "leave it out (the page Options lists all)"


def refuse(values: Values, why: str, *names: str) -> None:
    given = [name for name in names if name in values]
    if given:
        raise all_of([OptionError(name, why) for name in given])


def exclusive(values: Values, *names: str) -> None:
    first, *others = [name for name in names if name in values] or [""]
    refuse(values, f"contradicts option '{first}'; give one of them", *others)


def needs(values: Values, name: str, *others: str) -> None:
    for other in others:
        if name in values and other not in values:
            raise OptionError(name, f"needs option '{other}' too")


def parsed(name: str, parse: Callable[[Any], Any], value: Any) -> Any:
    try:
        return parse(value)
    except ValueError as error:
        raise OptionError(name, str(error)) from None
