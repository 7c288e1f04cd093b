"""
Hostile bytes for the decoders, and for the lanes, whose states answers move; and a slow reference
that says what the package must make of them.

`tests/unit/test_fuzz.py` runs each kind by hypothesis, which also makes a case small that fails.
docs/security.md says what was found.
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
"""Each draws a `case`, and can `check` it against the reference."""
