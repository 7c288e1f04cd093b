"""Columns that are commands to the server: schedules, counters, and what is wrong with them."""

from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from pyspark_jetstream.errors import ColumnError, RowError
from pyspark_jetstream.outbox.targets import Target
from pyspark_jetstream.write.preparation import check_schema

from ...kits.encoder import Encoder, builder, frames

WHEN = datetime(2026, 12, 1, 8, 30, 0, 250, tzinfo=UTC)
NEVER = datetime(9999, 12, 31, tzinfo=UTC)
TIME = pa.timestamp("us", "UTC")
EXPIRES = pa.array([[("Nats-TTL", "1s")]], pa.map_(pa.string(), pa.string()))


def lines(batch, **arguments):
    """The header lines of each row, as texts."""
    found = frames(Encoder("IN", subject="s", **arguments), batch)
    return [frame.split(b"\r\n")[2:-3] for frame in found]


def rows(**columns):
    """A batch of rows with a payload."""
    count = len(next(iter(columns.values())))
    return pa.record_batch({"data": pa.array(["x"] * count)} | columns)


def test_a_schedule_as_header_lines():
    """A time, or a text, becomes a schedule, with the row's id a second time."""
    batch = rows(
        deliver_at=pa.array([WHEN, None, None], TIME),
        schedule=pa.array([None, "0 30 8 * * *", None]),
        schedule_target=pa.array(["t.a", "t.b", None]),
        ttl=pa.array(["5m", None, "1h"]),
    )

    assert lines(batch, id_prefix="P") == [
        [b"Nats-Msg-Id: P-0", b"Nats-Schedule: @at 2026-12-01T08:30:00.000250Z",
         b"Nats-Schedule-Target: t.a", b"Nats-Schedule-TTL: 5m", b"Jetstream-Sink-Id: P-0"],
        [b"Nats-Msg-Id: P-1", b"Nats-Schedule: 0 30 8 * * *", b"Nats-Schedule-Target: t.b",
         b"Jetstream-Sink-Id: P-1"],
        [b"Nats-Msg-Id: P-2", b"Nats-TTL: 1h"],
    ]  # fmt: skip


def test_what_is_long_past_is_now():
    """A time that the server would not know, as the least of Spark's, is one that is past."""
    least = datetime(1, 1, 1, tzinfo=UTC)
    batch = rows(deliver_at=pa.array([least], TIME), schedule_target=["t"])

    assert lines(batch) == [
        [b"Nats-Schedule: @at 1970-01-01T00:00:00.000000Z", b"Nats-Schedule-Target: t"]
    ]


@pytest.mark.parametrize(
    "values",
    [
        pa.array([5, -3, None], pa.int64()),
        pa.array([Decimal(5), Decimal(-3), None], pa.decimal128(38, 0)),
        pa.array([5, -3, None], pa.int8()),
    ],
    ids=["bigint", "decimal", "tinyint"],
)
def test_an_increment_as_header_lines(values):
    """An increment is a header, and the payload is empty; a row without one is a message."""
    batch = pa.record_batch({"increment": values, "data": pa.array(["", None, "x"])})

    assert frames(Encoder("IN", subject="s"), batch) == [
        b"HPUB s IN.0 26 26\r\nNATS/1.0\r\nNats-Incr: 5\r\n\r\n\r\n",
        b"HPUB s IN.1 27 27\r\nNATS/1.0\r\nNats-Incr: -3\r\n\r\n\r\n",
        b"PUB s IN.2 1\r\nx\r\n",
    ]


def test_an_operation_that_is_no_text():
    """Spark lets any bytes be a STRING: such an operation is its row's fault."""
    operations = pa.array([b"PUT", b"\xff"], pa.binary()).view(pa.string())
    batch = pa.record_batch({"key": ["a", "b"], "value": ["x", ""], "operation": operations})
    with pytest.raises(RowError, match="row 1 of partition 0: operation is none"):
        builder(bucket="B").build(batch)


def test_a_column_comes_before_a_header():
    """Of a name that stands twice the server takes the first."""
    batch = rows(ttl=["5m"], headers=EXPIRES)

    assert lines(batch) == [[b"Nats-TTL: 5m", b"Nats-TTL: 1s"]]


def test_increments_need_no_payload():
    """The largest number that Spark has, without a column `data`."""
    large = Decimal("-" + "9" * 38)
    batch = pa.record_batch({"increment": pa.array([large], pa.decimal128(38, 0))})

    assert lines(batch) == [[b"Nats-Incr: -" + b"9" * 38]]


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"deliver_at": pa.array([WHEN], TIME), "schedule": ["@daily"], "schedule_target": ["t"]},
         "both deliver_at and schedule"),
        ({"deliver_at": pa.array([None], TIME), "schedule_target": ["t"]},
         "schedule_target without deliver_at or schedule"),
        ({"schedule": ["@daily\r\nA: b"], "schedule_target": ["t"]}, "schedule contains a line"),
        ({"schedule": ["@daily"], "schedule_target": ["t\nA: b"]}, "schedule_target contains a"),
        ({"ttl": ["5m\r\nNats-Rollup: all"]}, "ttl contains a line break"),
        ({"deliver_at": pa.array([NEVER], TIME), "schedule_target": ["t"]}, "it ends in 2261"),
        ({"increment": [1]}, "a row with an increment, a delete or a purge has no payload"),
        ({"increment": pa.array([1, None], pa.int64()), "data": pa.array(["", None])},
         "data is null; a message needs a payload"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_rows_that_would_mean_something_else(columns, reason):
    """Found before it is sent; with `onReject` it is the row's fault, without its commands."""
    columns = {
        name: value if isinstance(value, pa.Array) else pa.array(value)
        for name, value in columns.items()
    }
    with pytest.raises(RowError, match="row .* of partition 0: .*") as caught:
        builder(subject="s").build(rows(**columns))
    assert reason in str(caught.value)

    refused = builder(subject="s", rejects=True).build(rows(**columns))
    faults = [fault for fault in refused.faults.to_pylist() if fault is not None]
    assert len(faults) == 1 and reason in faults[0]


COLUMNS = {
    "schedule_target": pa.string(), "deliver_at": TIME, "schedule": pa.string(),
    "increment": pa.int64(),
}  # fmt: skip


@pytest.mark.parametrize("increment", [pa.int8(), pa.uint64(), pa.decimal128(38, 0)])
def test_all_columns_together(increment):
    """An increment is any whole number."""
    check_schema(pa.schema({"data": pa.string()} | COLUMNS | {"increment": increment}), True)


@pytest.mark.parametrize(
    ("columns", "blamed"),
    [
        (["deliver_at"], "schedule_target"),
        (["schedule"], "schedule_target"),
        (["schedule_target"], "schedule_target"),
    ],
)
def test_columns_that_need_another_one(columns, blamed):
    """A schedule needs its target, and a target its schedule, which the driver says."""
    schema = pa.schema({"data": pa.string()} | {name: COLUMNS[name] for name in columns})
    with pytest.raises(ColumnError) as caught:
        check_schema(schema, True)

    assert caught.value.column == blamed


@pytest.mark.parametrize(
    ("name", "type"),
    [
        ("deliver_at", pa.timestamp("us")),
        ("deliver_at", pa.string()),
        ("schedule", pa.int64()),
        ("increment", pa.decimal128(10, 2)),
        ("increment", pa.float64()),
        ("increment", pa.string()),
    ],
    ids=str,
)
def test_columns_of_another_type(name, type):
    """A time without its zone, and a number with a fraction, are none."""
    schema = {"data": pa.string(), "schedule_target": pa.string(), "schedule": pa.string()}
    with pytest.raises(ColumnError, match=r"expected (TIMESTAMP|STRING|BIGINT, or DECIMAL)"):
        check_schema(pa.schema(schema | {name: type}), True)


def test_counters_that_forget_cannot_be_exact():
    """Nobody could tell later whether a row was added."""
    config = {"name": "S", "subjects": ["S.>"], "allow_msg_counter": True}
    forgets = Target.parse(config | {"max_msgs_per_subject": 1})

    assert "counters and max_msgs_per_subject" in forgets.fault(10.0)
    assert Target.parse(config).fault(10.0) is None
