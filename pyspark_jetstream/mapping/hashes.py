"""
The server's hash of keys, by which `partition` numbers them.

Rule 1: this module performs no I/O and knows no rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from ..arrays import BINARY, STRING, offsets

_FEW: Final = 100
"""Fewer keys are hashed one by one: the kernels' calls cost as much."""
_SHORT: Final = 256
"""Bytes of a key, at most, if many are hashed at once: each waits for the longest."""
_PRIME: Final = pa.scalar(0x01000193, pa.uint32())


def fnv1a32(data: bytes) -> int:
    """The 32-bit FNV-1a hash, the server's for `partition`."""
    value = 0x811C9DC5
    for byte in data:
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value


def numbers_of(keys: Sequence[str], buckets: int) -> list[str]:
    """The partition of each of some keys; of many short ones, byte by byte over all at once."""
    if len(keys) < _FEW or max(map(len, keys)) > _SHORT:
        hashes = (fnv1a32(key.encode("utf-8", "surrogateescape")) for key in keys)
        return [str(each % buckets) for each in hashes]
    column = pa.array(keys, STRING).cast(BINARY)
    starts, sizes = offsets(column).slice(0, len(keys)), pc.binary_length(column)
    text = pa.Array.from_buffers(pa.uint8(), column.buffers()[2].size, [None, column.buffers()[2]])
    state = pa.repeat(pa.scalar(0x811C9DC5, pa.uint32()), len(keys))
    shortest, longest = (pc.min_max(sizes)[name].as_py() for name in ("min", "max"))
    for index in range(longest):
        at = pc.min_element_wise(pc.add(starts, index), len(text) - 1)
        hashed = pc.multiply(pc.bit_wise_xor(text.take(at), state), _PRIME)  # wraps, as it should
        state = hashed if index < shortest else pc.if_else(pc.greater(sizes, index), hashed, state)
    by = pa.scalar(buckets, pa.uint32())
    numbers = pc.subtract(state, pc.multiply(pc.divide(state, by), by))
    partitions: list[str] = numbers.cast(STRING).to_pylist()
    return partitions
