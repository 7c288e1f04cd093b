"""
JSON that others wrote: whatever is wrong with it is a `ValueError`.

What comes off the wire, or out of a file, may be anybody's. Python's reader ends with a
`RecursionError` where brackets stand in too many brackets, which who expects bad text does not
expect.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

__all__ = ["read_json"]


def read_json(
    text: str | bytes, object_pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None = None
) -> Any:
    """
    The value that the text is.

    Raises:
        ValueError: It is no JSON, or nested too deep to be read.
    """
    try:
        return json.loads(text, object_pairs_hook=object_pairs_hook)
    except RecursionError:
        raise ValueError("nested too deep") from None
