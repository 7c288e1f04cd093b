"""Every fault a run may have: each lasts a moment and heals itself, or is the last of its run."""

from . import network, processes, serving, sources, stores, streams  # noqa: F401 - they fill FAULTS
from .registry import FAULTS, Fault, MissedError

__all__ = ["FAULTS", "Fault", "MissedError"]
