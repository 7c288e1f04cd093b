"""Every fault a run may have: each lasts a moment and heals itself, or is the last of its run."""

from . import consumers, network, processes, serving, sources, stores, streams
from .registry import FAULTS, Fault, MissedError, fitting

__all__ = [
    "FAULTS",
    "Fault",
    "MissedError",
    "consumers",
    "fitting",
    "network",
    "processes",
    "serving",
    "sources",
    "stores",
    "streams",
]
