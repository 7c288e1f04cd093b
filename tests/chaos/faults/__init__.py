"""Every fault a run may have: each happens, lasts a moment and heals itself."""

from . import network, processes, serving, streams
from .registry import FAULTS, Fault, MissedError, fitting

__all__ = [
    "FAULTS",
    "Fault",
    "MissedError",
    "fitting",
    "network",
    "processes",
    "serving",
    "streams",
]
