"""What a stream holds, and its messages as Arrow: by consumer or direct get. No Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..faces import face

if TYPE_CHECKING:
    from .call import DirectCall
    from .consumer import ConsumerRead, read_consumer
    from .directcalls import DirectCalls
    from .directget import DirectRead, read_direct
    from .layout import Layout, resolve_layout
    from .survey import Survey

__all__ = [
    "ConsumerRead",
    "DirectCall",
    "DirectCalls",
    "DirectRead",
    "Layout",
    "Survey",
    "read_consumer",
    "read_direct",
    "resolve_layout",
]

__getattr__ = face(
    __name__,
    {
        "DirectCalls": "directcalls",
        "DirectCall": "call",
        "DirectRead": "directget",
        "ConsumerRead": "consumer",
        "read_direct": "directget",
        "read_consumer": "consumer",
        "Layout": "layout",
        "resolve_layout": "layout",
        "Survey": "survey",
    },
)
