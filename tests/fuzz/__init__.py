"""Hostile bytes for decoders, and a slow reference; run by tests/unit/test_fuzz.py."""

from __future__ import annotations

from typing import Any, Final

from . import answering, asking, consuming, getting, parsing

KINDS: Final[dict[str, Any]] = {
    "deliveries": consuming,
    "replies": getting,
    "acks": answering,
    "frames": parsing,
    "api": asking,
}
"""Each draws a `case`, and can `check` it against the reference."""
