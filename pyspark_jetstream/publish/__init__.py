"""Messages into streams, each with its answer: three ways to publish, one loop. No Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..faces import face

if TYPE_CHECKING:
    from .answers import Outcome
    from .asynclane import framed
    from .frames import Publishes, frame
    from .metrics import METRICS, Snapshot
    from .options import SinkOptions
    from .publisher import publish
    from .telemetry import Counts
    from .window import Window

__all__ = [
    "Counts",
    "METRICS",
    "Outcome",
    "Publishes",
    "SinkOptions",
    "Snapshot",
    "Window",
    "frame",
    "framed",
    "publish",
]

__getattr__ = face(
    __name__,
    {
        "SinkOptions": "options",
        "Counts": "telemetry",
        "publish": "publisher",
        "METRICS": "metrics",
        "Snapshot": "metrics",
        "Publishes": "frames",
        "Window": "window",
        "Outcome": "answers",
        "framed": "asynclane",
        "frame": "frames",
    },
)
