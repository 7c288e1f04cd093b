"""The list of faults, and how one gets on it."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from ..cases import Case
from ..outcomes import EXACT, Outcome
from ..world import World

Happens = Callable[[World, random.Random], Awaitable[str]]
"""Does the fault, heals it, and says what it hit."""


class MissedError(Exception):
    """There was nothing to hit; it is not counted."""


@dataclass(frozen=True)
class Fault:
    """One kind of fault."""

    name: str
    weight: float
    fits: Callable[[Case], bool]
    happen: Happens
    expects: Callable[[Case], Outcome]
    last: bool
    """Whether nothing heals it, so that a run ends with it."""


FAULTS: Final[dict[str, Fault]] = {}


def fault(
    name: str,
    weight: float = 1.0,
    fits: Callable[[Case], bool] = lambda case: True,
    expects: Callable[[Case], Outcome] = lambda case: EXACT,
    last: bool = False,
) -> Callable[[Happens], Happens]:
    """Puts a fault on the list; `fits` says where it may happen and `expects` holds."""

    def listed(happen: Happens) -> Happens:
        FAULTS[name] = Fault(name, weight, fits, happen, expects, last)
        return happen

    return listed


def fitting(case: Case) -> list[Fault]:
    """The faults of a cell."""
    return [each for each in FAULTS.values() if each.fits(case)]
