"""`spark.readStream`: offsets, batches, consumers of our own, standby; `shared` with others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..faces import face

if TYPE_CHECKING:
    from .offsets import Offset
    from .options import SourceOptions
    from .reader import JetStreamStreamReader
    from .shared.claims import ClaimedOffset
    from .shared.reader import SharedStreamReader

__all__ = [
    "ClaimedOffset",
    "JetStreamStreamReader",
    "Offset",
    "SharedStreamReader",
    "SourceOptions",
]

__getattr__ = face(
    __name__,
    {
        "JetStreamStreamReader": "reader",
        "SharedStreamReader": "shared.reader",
        "Offset": "offsets",
        "ClaimedOffset": "shared.claims",
        "SourceOptions": "options",
    },
)
