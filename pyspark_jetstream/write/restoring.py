"""Dead letters of a read as the rows that they were, ready for `df.write` and `df.writeStream`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from ..errors import ColumnError
from ..outbox.deadletters import ADDED, ID, ORIGINAL

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def restored(letters: DataFrame) -> DataFrame:
    """
    The rows that dead letters were.

    What is no dead letter is left out, and so is a dead letter whose row could not be kept whole.
    Choose by reason or priority before, such as with
    `letters.where("headers['Jetstream-Sink-Reason'][0] like 'Rejected%'")`.

    Args:
        letters: a read with `includeHeaders`, of a batch or a stream.

    Returns:
        `subject`, `data`, `headers`, `msg_id`, `priority`, as they were; `msg_id` is null where the
        row had none.

    Raises:
        ColumnError: The read has no headers.
    """
    if "headers" not in letters.columns:
        raise ColumnError("headers", "required: read dead letters with includeHeaders=true")
    subject, priority = ADDED[0], ADDED[2]
    rows = letters.select(
        _first(subject).alias("subject"),
        "data",
        F.transform_keys(F.map_filter("headers", _is_the_row_s), _own_name).alias("headers"),
        _first(f"{ORIGINAL}{ID}").alias("msg_id"),
        _first(priority).alias("priority"),
    )
    return rows.where("subject is not null")


def _first(header: str) -> Column:
    """The first value of a header, which is the one that counts; null without it."""
    return F.get(F.element_at("headers", header), 0)


def _is_the_row_s(name: Column, values: Column) -> Column:
    """
    Whether the row had this header. Of one that stands in a letter with and without the prefix,
    as only somebody else's letter has it, the one with it counts: a map has each name once.
    """
    renamed = F.map_contains_key("headers", F.concat(F.lit(ORIGINAL), name))
    is_letter_s = name.isin(*ADDED, ID, f"{ORIGINAL}{ID}")
    return ~is_letter_s & (name.startswith(ORIGINAL) | ~renamed)


def _own_name(name: Column, values: Column) -> Column:
    return F.when(name.startswith(ORIGINAL), F.substr(name, F.lit(len(ORIGINAL) + 1))).otherwise(
        name
    )
