"""One connection to NATS, and the JetStream API on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..faces import face

if TYPE_CHECKING:
    from .connection import Client, Connection, borrow
    from .info import ConsumerInfo, StreamInfo
    from .jetstream import JetStream
    from .options import ConnectionOptions, parse_connection

__all__ = [
    "Client",
    "Connection",
    "ConnectionOptions",
    "ConsumerInfo",
    "JetStream",
    "StreamInfo",
    "borrow",
    "parse_connection",
]

__getattr__ = face(
    __name__,
    {
        "Client": "connection",
        "Connection": "connection",
        "ConnectionOptions": "options",
        "JetStream": "jetstream",
        "StreamInfo": "info",
        "ConsumerInfo": "info",
        "borrow": "connection",
        "parse_connection": "options",
    },
)
