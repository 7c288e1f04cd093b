"""
A fuzzer of the decoders: what the package makes of a server's bytes, against a slow reference; and
of the lanes, whose states answers move.

`python -m tests.fuzz` (or `make fuzz`) runs it; docs/security.md says what it found. Streams are
made in bulk, of pools of frames: a library for properties would shrink better, and make them far
more slowly; what is shrunk here is bytes alone.
"""

from __future__ import annotations

from typing import Any, Final

from . import answering, asking, consuming, conversing, getting, parsing

KINDS: Final[dict[str, Any]] = {
    "deliveries": consuming,
    "replies": getting,
    "acks": answering,
    "frames": parsing,
    "lanes": conversing,
    "api": asking,
}
"""Each with a `Pool` of frames, `sound` and `broken` streams of them, and `check`."""
