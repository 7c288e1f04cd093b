"""Scheduled rows and counters on a real server: each once, whatever happened to attempts before."""

import json
from collections import Counter
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructType

from pyspark_jetstream.errors import (
    ColumnError,
    LedgerError,
    PublishRejectedError,
)
from pyspark_jetstream.options import parse_sink
from pyspark_jetstream.write.exactlyonce.ids import TaskName
from pyspark_jetstream.write.sink import JetStreamBatchWriter

from ..kits.options import changed
from ..kits.shared import eventually
from .test_writes import BRIEF, FAST, KilledError, options, outlive, write

__all__ = ["options"]


def increments(name, count, size=100, keys=7, fail_at=None):
    """Batches that add the row's number to one of seven counters; the task dies before a row."""
    for low in range(0, count, size):
        if fail_at is not None and low >= fail_at:
            raise KilledError
        numbers = range(low, min(count, low + size))
        subjects = [f"{name}.{row % keys}" for row in numbers]
        yield pa.record_batch({"subject": subjects, "increment": pa.array(numbers, pa.int64())})


def sums(js, name):
    """The counters of a stream, as it has them."""
    subjects = sorted(js.subject_counts(name, [">"])[1])
    return {
        message.subject.rpartition(".")[2]: int(json.loads(message.data)["val"])
        for message in js.last_messages(name, subjects)
    }


def expected(*counts, keys=7):
    """What the counters should be when so many rows of each task were added."""
    total = Counter()
    for count in counts:
        for row in range(count):
            total[str(row % keys)] += row
    return dict(total)


def test_a_half_added_task_is_completed_beyond_the_window(js, ledger, options, new_stream):
    """Counters are the sum of what was committed, beside other tasks, too."""
    name = new_stream(allow_msg_counter=True, **BRIEF)
    options = changed(options, **FAST)
    one, two = TaskName("counted", 3, 1), TaskName("counted", 3, 2)
    with pytest.raises(KilledError):
        write(options, one, increments(name, 1000, fail_at=600))
    outlive(js, name)
    write(options, two, increments(name, 400))
    again = write(options, one, increments(name, 1000))

    assert 0 < again.already_stored < 1000
    assert (again.rows, again.acked) == (1000, 1000 - again.already_stored)
    assert sums(js, name) == expected(1000, 400)


def test_increments_of_any_size(js, ledger, options, new_stream):
    """The server adds numbers of any size; a DECIMAL of Spark has 38 digits."""
    name = new_stream(allow_msg_counter=True)
    large = 10**38 - 1
    batch = pa.record_batch(
        {"subject": [f"{name}.a"] * 3, "increment": pa.array([large, large, -1], pa.decimal128(38))}
    )
    write(options, TaskName("large", 1, 0), [batch])

    assert sums(js, name) == {"a": 2 * large - 1}


def schedules(name, count, at, size=100, fail_at=None):
    """Batches of rows for this time, each on a subject of its own; the task dies before a row."""
    for low in range(0, count, size):
        if fail_at is not None and low >= fail_at:
            raise KilledError
        numbers = range(low, min(count, low + size))
        yield pa.record_batch(
            {
                "subject": [f"{name}.plan.{row}" for row in numbers],
                "data": [str(row) for row in numbers],
                "deliver_at": pa.array([at] * len(numbers), pa.timestamp("us", "UTC")),
                "schedule_target": [f"{name}.due.{row % 3}" for row in numbers],
            }
        )


def due(js, name):
    """The payloads of what schedules have made, in order."""
    info = js.stream_info(name)
    found = js.messages_of([(name, {"seq": seq}) for seq in range(1, info.last_seq + 1)])
    return [int(m.data) for m in found if m is not None and ".due." in m.subject]


def planned(js, name):
    """The subjects of schedules whose time has not come; each goes when its message is stored."""
    return js.subject_counts(name, [f"{name}.plan.>"])[1]


def test_a_half_scheduled_task_is_completed_beyond_the_window(js, ledger, options, new_stream):
    """Published once, though their schedules are gone and their ids forgotten."""
    name = new_stream(allow_msg_schedules=True, allow_msg_ttl=True, **BRIEF)
    options = changed(options, **FAST)
    task, at = TaskName(f"s-{name}", 3, 1), datetime.now(UTC) + timedelta(seconds=1)
    with pytest.raises(KilledError):
        write(options, task, schedules(name, 300, at, fail_at=200))
    eventually(lambda: due(js, name) and not planned(js, name))
    js.publish(f"{name}.last", b"", [("Nats-Msg-Id", "last")])
    outlive(js, name)
    again = write(options, task, schedules(name, 300, at))
    eventually(lambda: not planned(js, name))

    assert 0 < again.already_stored < 300
    assert (again.rows, again.acked) == (300, 300 - again.already_stored)
    assert sorted(due(js, name)) == list(range(300))


def test_schedules_that_leave_the_front_of_a_stream_are_no_loss(js, ledger, options, new_stream):
    """Unless a limit may have taken rows, too."""
    soon = datetime.now(UTC) + timedelta(seconds=1)
    for bounds, count in (({}, 20), ({"max_msgs": 1000}, 20)):
        name = new_stream(allow_msg_schedules=True, **bounds)
        task = TaskName(f"front-{name}", 3, 1)

        def dying(name=name):
            yield from schedules(name, 10, soon)
            eventually(lambda: js.stream_info(name).last_seq >= 10)
            raise KilledError

        with pytest.raises(KilledError):
            write(options, task, dying())
        eventually(lambda name=name: len(due(js, name)) == 10)
        assert js.stream_info(name).first_seq > 1
        if bounds:
            with pytest.raises(LedgerError, match="begins at sequence 11"):
                write(options, task, schedules(name, count, soon, size=10))
        else:
            again = write(options, task, schedules(name, count, soon, size=10))
            eventually(lambda name=name: len(due(js, name)) == 20)

            assert (again.already_stored, again.acked) == (10, 10)
            assert sorted(due(js, name)) == list(range(20))


@pytest.mark.parametrize(
    ("config", "columns"),
    [
        ({}, {"schedule": ["@daily"], "schedule_target": ["b"], "data": ["x"]}),
        (
            {"allow_msg_schedules": True},
            {"schedule": ["0 99 8 * * *"], "schedule_target": ["b"], "data": ["x"]},
        ),
        ({}, {"increment": [1]}),
        ({"allow_msg_counter": True}, {"data": ["x"]}),
        ({}, {"data": ["x"], "ttl": ["1h"]}),
        ({"allow_msg_ttl": True}, {"data": ["x"], "ttl": ["soon"]}),
    ],
    ids=["no schedules", "no cron", "no counters", "counters alone", "no TTL", "bad TTL"],
)
def test_a_stream_that_does_not_take_a_command_says_so(
    js, ledger, options, new_stream, config, columns
):
    """The server judges what a column says: no row is stored without what it asked for."""
    name = new_stream(**config)
    columns = {"subject": [f"{name}.a"]} | columns
    if "schedule_target" in columns:
        columns["schedule_target"] = [f"{name}.b"]
    with pytest.raises(PublishRejectedError, match=rf"'{name}\.a'"):
        write(options, TaskName(f"not-{name}", 1, 0), [pa.record_batch(columns)])

    assert js.stream_info(name).messages == 0


def test_a_command_does_not_stand_in_a_dead_letter(nats_server):
    """The stream of the dead letters would act on it; the driver says so before a row moves."""
    given = {"servers": nats_server.url, "subject": "a", "onReject": "dead-letter"}
    given |= {"deadLetterSubject": "dead.x"}
    schema = StructType().add("Increment", LongType())
    with pytest.raises(ColumnError, match="cannot stand in a dead letter"):
        JetStreamBatchWriter.prepared(parse_sink(given), schema, False)
