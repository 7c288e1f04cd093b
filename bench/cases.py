"""
One measurement: this package's run, and what stands beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from .others.child import Outcome
from .spark import Run


@dataclass(frozen=True, slots=True)
class Case:
    """One measurement."""

    name: str
    bound: str
    """What bounds it, by observation."""
    ours: Callable[[], Run]
    references: Mapping[str, Callable[[], Outcome]]
    notes: Mapping[str, str] = field(default_factory=dict)
    """What one must know about the figure of a reference."""
    warm_up: bool = True
    """Whether runs without a clock come first."""
