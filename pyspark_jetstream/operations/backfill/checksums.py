"""
Checksums of rows that do not depend on their order: the sum of each row's `xxhash64`, modulo 2^64.

Parts add up: the checksum of a backfill is the sum of its files'. They are made to find damage and
loss, not to withstand somebody who looks for a collision.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F
from pyspark.sql.types import MapType, StructType

if TYPE_CHECKING:
    from pyspark.sql import Column

_MODULUS: Final = 1 << 64


def row_sum(schema: StructType, names: Iterable[str], where: Column | None = None) -> Column:
    """
    The sum over these columns, of the rows `where` it is so, as an aggregation: a decimal, since
    longs would overflow.
    """
    columns = [
        # Spark hashes no maps, but lists of their entries.
        F.map_entries(name) if isinstance(schema[name].dataType, MapType) else F.col(name)
        for name in names
    ]
    hashed = F.xxhash64(*columns).cast("decimal(20,0)")
    return F.coalesce(F.sum(hashed if where is None else F.when(where, hashed)), F.lit(0))


def text(value: int) -> str:
    """A sum as the manifest holds it."""
    return f"{value % _MODULUS:016x}"


def total(parts: Iterable[str]) -> str:
    """The checksum of several parts together."""
    return text(sum(int(part, 16) for part in parts))
