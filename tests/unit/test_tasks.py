"""A task travels to another process, and carries no more than its work needs."""

import pickle
from dataclasses import replace

import pytest

from pyspark_jetstream.client.options import parse_connection
from pyspark_jetstream.fetch.call import DirectCall
from pyspark_jetstream.fetch.layout import Layout, SubjectPartition
from pyspark_jetstream.read.singleget import CallRead
from pyspark_jetstream.read.snapshotread import NamedRead, Point
from pyspark_jetstream.readstream.shared.claimedread import ClaimedRead
from pyspark_jetstream.tasks.ranges import RangeRead, Reads, pieces
from pyspark_jetstream.tasks.rows import ReadTask, read_task

CONNECTION = parse_connection({"servers": "nats://127.0.0.1:4222", "user": "u", "password": "hush"})
LAYOUT = Layout(tuple(SubjectPartition(i, "S", f"S.{i}.>") for i in range(4)))
RANGE = RangeRead(None, "S", None, 0, 100, 90, False, True, layout=LAYOUT)
POINT = Point(9, "t0", None, False)
PICK = NamedRead(
    None, "S", None, 0, 9, None, False, True,
    layout=LAYOUT, point=POINT, names=b"names",
)  # fmt: skip
WORKS = (
    RANGE,
    PICK,
    replace(RANGE, group="g"),
    ClaimedRead(0, "S", None, 0, 9, 9, False, True, layout=Layout(()), claims={1: ((1, 9),)}),
    CallRead("S", DirectCall(seq=1), LAYOUT),
    Reads((RANGE,)),
)


@pytest.mark.parametrize("work", WORKS, ids=lambda work: type(work).__name__)
def test_a_task_travels(work):
    """A task arrives with its work as it was, in less than a kilobyte, and shows no secret."""
    packed = pickle.dumps(ReadTask(CONNECTION, work))
    task = pickle.loads(packed)

    assert (task.connection, task.work) == (CONNECTION, work)
    assert len(packed) < 1000
    assert "hush" not in repr(task)


def test_a_range_is_cut_into_tasks():
    """Each has its part of the range and its own count, and all the rest of the read."""
    found = pieces(RANGE, [(0, 60), (60, 100)], [50, None])

    assert [(each.start, each.end, each.expected) for each in found] == [
        (0, 60, 50),
        (60, 100, None),
    ]
    assert all(each.layout is LAYOUT for each in found)


@pytest.mark.parametrize(
    ("counted", "counts", "expected"),
    [
        (100, [60, 40], [60, 40]),
        (100, [30, 40], [60, 40]),
        (100, [0, 0], [100, 0]),
        (100, [70, 40], [70, 40]),
        (100, [None, 40], [None, 40]),
        (None, [30, 40], [30, 40]),
    ],
)
def test_the_first_task_misses_what_left_since_the_batch_was_planned(counted, counts, expected):
    """Ranges are counted later than the batch; what is in neither count left the stream unread."""
    found = pieces(replace(RANGE, expected=counted), [(0, 60), (60, 100)], counts)

    assert [each.expected for each in found] == expected


def test_no_task_has_no_rows():
    """Spark makes a task of None where a read has no partitions."""
    assert list(read_task(None)) == []
