"""Messages that wait to be sent: how urgent, how many may go, what is paused or shed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..faces import face

if TYPE_CHECKING:
    from .deadletters import DeadLetters, restore
    from .limits import FixedLimit, GradientLimit, Kind, Limit
    from .messages import Messages
    from .priority import Priorities, Priority, Publish
    from .throttle import Throttle
    from .throttleprotocol import (
        DISCOVER,
        THROTTLE_SUBJECT,
        Reason,
        Receipt,
        ThrottleProducer,
        understand,
    )

__all__ = [
    "DISCOVER",
    "THROTTLE_SUBJECT",
    "Receipt",
    "ThrottleProducer",
    "understand",
    "DeadLetters",
    "FixedLimit",
    "GradientLimit",
    "Kind",
    "Limit",
    "Messages",
    "Priorities",
    "Priority",
    "Publish",
    "Reason",
    "Throttle",
    "restore",
]

__getattr__ = face(
    __name__,
    {
        "Priority": "priority",
        "Priorities": "priority",
        "Publish": "priority",
        "Reason": "throttleprotocol",
        "DISCOVER": "throttleprotocol",
        "THROTTLE_SUBJECT": "throttleprotocol",
        "Receipt": "throttleprotocol",
        "ThrottleProducer": "throttleprotocol",
        "understand": "throttleprotocol",
        "Throttle": "throttle",
        "DeadLetters": "deadletters",
        "restore": "deadletters",
        "Messages": "messages",
        "Kind": "limits",
        "Limit": "limits",
        "FixedLimit": "limits",
        "GradientLimit": "limits",
    },
)
