"""Every fault a run may have: each lasts a moment and heals itself."""

from . import network, processes, serving, streams  # noqa: F401 - they fill FAULTS
from .registry import FAULTS, Fault, MissedError

__all__ = ["FAULTS", "Fault", "MissedError"]
