"""
The inputs of a task's publishing beside its connection and its rows.

One of them asks the server when it is called: `targets` for streams. The others are values.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ..client.patience import Clock
from ..outbox.targets import Targets
from .settings import SinkOptions
from .telemetry import Origin, Telemetry


@dataclass(slots=True)
class WriteContext:
    """Values that are the same for all rows of a task, but for what is paused."""

    options: SinkOptions
    targets: Targets = field(default_factory=Targets)
    """The streams that rows may go to, where they are known."""
    origin: Origin = field(default_factory=Origin)
    telemetry: Telemetry = field(default_factory=Telemetry)
    """Counts what happens."""
    is_paused: Callable[[str], bool] | None = None
    """
    Whether a subject is paused, None while none is: the publisher sets it before it asks for a
    block, for who makes the rows on another thread.
    """
    is_checked: bool = False
    """Whether rows are looked up before they are sent: then few leave the queue at one time."""
    clock: Clock = time
