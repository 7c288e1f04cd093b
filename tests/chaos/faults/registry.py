"""The list of faults, and how one gets on it."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from ..cases import Case
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


FAULTS: Final[dict[str, Fault]] = {}


def fault(
    name: str,
    weight: float = 1.0,
    fits: Callable[[Case], bool] = lambda case: True,
) -> Callable[[Happens], Happens]:
    """Puts a fault on the list; `fits` says where it may happen."""

    def listed(happen: Happens) -> Happens:
        FAULTS[name] = Fault(name, weight, fits, happen)
        return happen

    return listed
