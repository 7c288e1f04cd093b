"""
Arrow's small words: columns of bytes, places in a column, the place of a value among its equals.

Rule 1: Arrow kernels, no loop over rows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["BINARY", "CRLF", "NOTHING", "binary", "is_text", "join", "of_groups", "places", "ranks"]


BINARY: Final = pa.binary()

CRLF: Final = pa.scalar(b"\r\n", BINARY)

NOTHING: Final = pa.scalar(b"", BINARY)


def places(count: int) -> pa.Array:
    """INT64: 0, 1, 2 … `count` of them."""
    return _places(1 << count.bit_length())[:count]


@lru_cache(maxsize=32)
def _places(count: int) -> pa.Array:
    return pa.array(range(count), pa.int64())


def ranks(groups: pa.Array) -> pa.Array:
    """INT64: of each row, how many of its group are before it."""
    order = pc.sort_indices(groups)
    ordered = groups.take(order)
    here = places(len(groups))
    first = of_groups(ordered, here, "min")
    return pc.subtract(here, first(ordered)).take(pc.sort_indices(order))


def of_groups(groups: pa.Array, values: pa.Array, function: str) -> Callable[[pa.Array], pa.Array]:
    """Gives for groups the least or largest of their values; null for a group without any."""
    table = pa.table({"group": groups, "value": values})
    found = table.group_by("group", use_threads=False).aggregate([("value", function)])
    known = found["group"].combine_chunks()
    of_known = found[f"value_{function}"].combine_chunks()
    return lambda asked: of_known.take(pc.index_in(asked, known))


def is_text(type: pa.DataType) -> bool:
    """Whether it is one of the forms of STRING."""
    return bool(
        pa.types.is_string(type) or pa.types.is_large_string(type) or pa.types.is_string_view(type)
    )


def binary(array: pa.Array) -> pa.Array:
    """The same bytes as BINARY."""
    return array.cast(BINARY)


def join(*parts: Any) -> pa.Array:
    """The parts of each row behind each other; null where one is null."""
    return pc.binary_join_element_wise(*parts, NOTHING)
