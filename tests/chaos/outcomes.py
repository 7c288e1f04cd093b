"""What is expected of a query under a fault, written down before the fault happens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Outcome:
    """How it may go on."""

    exact: bool
    """Whether every message may be copied once and in order, restarts included."""
    errors: frozenset[str] = frozenset()
    """The errors of which one may end the query at each start."""

    def __str__(self) -> str:
        return " or ".join([*(["exact"] if self.exact else []), *sorted(self.errors)])


EXACT: Final = Outcome(True)


def ends(*errors: str) -> Outcome:
    """The query ends with one of these errors, again at each start."""
    return Outcome(False, frozenset(errors))


def exact_or(*errors: str) -> Outcome:
    """Either: whether something was lost is decided by what the server had on its disk."""
    return Outcome(True, frozenset(errors))
