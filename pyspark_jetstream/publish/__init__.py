"""Messages into streams, each with its answer: three ways to publish, one loop. No Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..faces import face

if TYPE_CHECKING:
    from .context import WriteContext
    from .lanes.answers import Outcome
    from .lanes.asynclane import framed
    from .lanes.frames import Publishes, frame
    from .lanes.window import Window
    from .metrics import DEAD_LETTER, METRICS, OUTCOMES, Snapshot
    from .options import SinkOptions
    from .publisher import Publisher, publish
    from .rowthread import Supply
    from .telemetry import Counts, Origin, Telemetry

__all__ = [
    "Counts",
    "DEAD_LETTER",
    "METRICS",
    "OUTCOMES",
    "Origin",
    "Telemetry",
    "Outcome",
    "Publisher",
    "Publishes",
    "SinkOptions",
    "Snapshot",
    "Supply",
    "Window",
    "WriteContext",
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
        "DEAD_LETTER": "metrics",
        "METRICS": "metrics",
        "OUTCOMES": "metrics",
        "Publisher": "publisher",
        "Supply": "rowthread",
        "WriteContext": "context",
        "Origin": "telemetry",
        "Telemetry": "telemetry",
        "Snapshot": "metrics",
        "Publishes": "lanes.frames",
        "Window": "lanes.window",
        "Outcome": "lanes.answers",
        "framed": "lanes.asynclane",
        "frame": "lanes.frames",
    },
)
