"""One task's write under the ledger: every row once, whatever happened to the attempts before."""

import json
import random
import threading
import time
from dataclasses import replace
from functools import partial
from itertools import count

import pyarrow as pa
import pytest

from pyspark_jetstream.errors import (
    ApiError,
    LedgerError,
    OptionError,
    WriterFencedError,
)
from pyspark_jetstream.publish.metrics import Written
from pyspark_jetstream.publish.settings import SinkOptions
from pyspark_jetstream.publish.telemetry import Telemetry
from pyspark_jetstream.write.exactlyonce import records
from pyspark_jetstream.write.exactlyonce.ids import Ids, TaskName
from pyspark_jetstream.write.exactlyonce.ledger import STREAM, Ledger
from pyspark_jetstream.write.task import TaskReport

from ..kits.options import changed, connection_of, sink_of
from ..kits.shared import eventually
from ..kits.streams import update_stream
from ..kits.writing import attempt
from .test_publisher import stored

FAST = {"ack_timeout_s": 1.0, "publish_timeout_s": 10.0}
"""With a duplicate window of four seconds a publish may take three of them."""

BRIEF = {"duplicate_window": 4 * 10**9}


COPIED = r"is filled from another stream \({}\): .* `nats stream backup KV_SPARK_LEDGER DIR`"
"""What is said of a bucket that is a copy."""


class KilledError(Exception):
    """Stands for the death of a task."""


@pytest.fixture
def options(nats_server) -> SinkOptions:
    """Options of an exactly-once write."""
    return sink_of(connection_of(nats_server.url), ledger=True)


def rows(name, count, size=100, keys=7, fail_at=None, **columns):
    """Batches whose data is the row's number; the task dies before the row `fail_at`."""
    for low in range(0, count, size):
        numbers = range(low, min(count, low + size))
        if fail_at is not None and low >= fail_at:
            raise KilledError
        yield pa.record_batch(
            {
                "subject": pa.array([f"{name}.{row % keys}" for row in numbers]),
                "data": pa.array([str(row) for row in numbers]),
            }
            | {key: pa.array([make(row) for row in numbers]) for key, make in columns.items()}
        )


def write(options, name, batches, ids=None, telemetry=None):
    """One attempt on a connection of its own."""
    report = TaskReport(telemetry or Telemetry())
    return attempt(options, batches, name, ids or Ids(f"{name}-p"), report)


def data_of(js, stream) -> list[int]:
    """The rows in the stream, in order of sequence."""
    return [int(data) for _, data in stored(js, stream)]


def outlive(js, *streams):
    """Has the server forget the ids of what is in these streams, as it does when time passes."""
    eventually(lambda: any(js.stream_info(stream).last_seq for stream in streams))
    for stream in streams:
        config, last = js.stream_info(stream).config, js.message_get(stream, last_by_subj=">")
        if last is not None:
            eventually(partial(is_forgotten, js, config, last, count(10**8)))
            update_stream(js, stream, **config)


def is_forgotten(js, config, message, windows):
    """Whether it is so with windows as short as the server takes."""
    update_stream(js, config["name"], duplicate_window=next(windows))
    return not is_remembered(js, message)


def is_remembered(js, message):
    """Whether a message with this one's id would be a duplicate; that is looked at before a TTL."""
    said = [header for header in message.headers if header[0] in ("Nats-Msg-Id", "Nats-Incr")]
    assert len(said) > 0, message
    try:
        js.publish(message.subject, b"", [*said, ("Nats-TTL", "none")])
    except ApiError as error:
        assert error.err_code == 10165, error
        return False
    return True


def test_a_finished_task_is_not_written_again(js, ledger, options, new_stream):
    """An attempt that comes after a complete one finds every row stored."""
    name, task = new_stream(**BRIEF), TaskName("q1", 0, 0)
    options = changed(options, **FAST)
    first = write(options, task, rows(name, 500))
    outlive(js, name)
    again = write(options, task, rows(name, 500))

    assert first == Written(500, 500, 0, first.retries, 0, 0)
    assert again == Written(500, 0, 0, 0, 0, 500)
    assert data_of(js, name) == list(range(500))


@pytest.mark.parametrize("exactly_once", [True, False])
def test_a2_priorities_that_are_none_are_said(
    js, ledger, options, new_stream, exactly_once, caplog
):
    """A2: the task's log says how many values should name a priority and do not."""
    name = new_stream()
    batches = rows(name, 300, priority=lambda row: "high" if row % 3 == 0 else "critical")
    options = replace(options, ledger=exactly_once)
    written = write(options, TaskName(f"qu{exactly_once}", 0, 0), batches)

    assert written.acked == 300
    (line,) = (each.message for each in caplog.records if "priority" in each.message)
    assert line.startswith("100 values name no priority")


def test_a_half_written_task_is_completed_beyond_the_window(js, ledger, options, new_stream):
    """When the ids are forgotten, rows that are stored are left out all the same."""
    name = new_stream(**BRIEF)
    task = TaskName("q2-killed", 3, 1)
    options = changed(options, **FAST)
    with pytest.raises(KilledError):
        write(options, task, rows(name, 1000, fail_at=600))
    outlive(js, name)
    again = write(options, task, rows(name, 1000))

    assert 0 < again.already_stored < 1000
    assert (again.rows, again.acked) == (1000, 1000 - again.already_stored)
    assert sorted(data_of(js, name)) == list(range(1000))


def test_a_committed_batch_is_not_written_again(js, ledger, options, new_stream):
    """A replay of the committed batch stores nothing; the next one does."""
    name = new_stream(**BRIEF)
    options = changed(options, **FAST)
    write(options, TaskName("q3", 7, 0), rows(name, 10))
    ledger.commit("q3", 7, 1, {"rows": 10})
    outlive(js, name)

    assert write(options, TaskName("q3", 7, 0), rows(name, 10)) is None
    assert js.stream_info(name).messages == 10
    assert write(options, TaskName("q3", 8, 0), rows(name, 10)).acked == 10


def test_a_commit_leaves_one_record(js, ledger, options, new_stream):
    """The records of the batch's tasks go; the committed one says what was written."""
    name = new_stream()
    for task in range(3):
        write(options, TaskName("q4", 0, task), rows(name, 5))
    before = js.stream_info(STREAM).messages
    ledger.commit("q4", 0, 3, {"rows": 15})
    (committed,) = js.last_messages(STREAM, ["$KV.SPARK_LEDGER.q4.committed"])

    assert json.loads(committed.data) == {"batch": 0, "streams": {}, "rows": 15}
    assert js.stream_info(STREAM).messages == before - 3 + 1


def test_an_attempt_that_was_superseded_stops(js, ledger, options, new_stream):
    """When another attempt opens the task, the first one fails at its end at the latest."""
    name, task = new_stream(), TaskName("q5", 0, 0)

    def overtaken():
        yield from rows(name, 100)
        assert write(options, task, rows(name, 300)).rows == 300
        yield from (b.slice(0) for b in rows(name, 300) if b["data"][0].as_py() in ("100", "200"))

    with pytest.raises(WriterFencedError, match=r"q5\.0\.0.*not the latest"):
        write(options, task, overtaken())
    assert sorted(data_of(js, name)) == list(range(300))


def test_a_zombie_stops_in_the_middle(js, ledger, options, new_stream):
    """An attempt that slept while another one wrote notices before it publishes the next batch."""
    name, task = new_stream(**BRIEF), TaskName("q6", 0, 0)
    options = changed(options, **FAST)

    def asleep():
        yield from rows(name, 100)
        write(options, task, rows(name, 300))
        time.sleep(4.5)  # longer than the window: that is what an attempt goes by
        yield from rows(name, 300)

    with pytest.raises(WriterFencedError):
        write(options, task, asleep())
    assert sorted(data_of(js, name)) == list(range(300))


def test_a_zombie_that_begins_behind_the_commit_stops(js, ledger, options, new_stream, monkeypatch):
    """What the window has forgotten it does not store again."""
    monkeypatch.setattr(records, "_FRESH_S", 600.0)
    name, task = new_stream(**BRIEF), TaskName("q24", 0, 0)
    options = changed(options, **FAST)

    def late():
        write(options, task, rows(name, 300))
        ledger.commit("q24", 0, 1, {})
        yield from rows(name, 100)
        time.sleep(4.5)  # longer than the window
        yield from (b for b in rows(name, 300) if b["data"][0].as_py() in ("100", "200"))

    with pytest.raises(WriterFencedError):
        write(options, task, late())
    assert sorted(data_of(js, name)) == list(range(300))


def test_what_a_dead_attempt_stores_late_is_seen(js, ledger, options, new_stream):
    """Rows the earlier attempt stores while the later one runs are left out, too."""
    name, task = new_stream(**BRIEF), TaskName("q7", 0, 0)
    options = changed(options, **FAST)
    with pytest.raises(KilledError):
        write(options, task, rows(name, 400, fail_at=100))

    def slow():
        for number, batch in enumerate(rows(name, 400)):
            yield batch
            if number == 1:
                for row in range(200, 250):
                    js.publish(
                        f"{name}.{row % 7}",
                        b"%d" % row,
                        [("Nats-Msg-Id", f"{task}-p-{task.task}-{row}")],
                    )
                time.sleep(4.5)  # longer than the window: that is what an attempt goes by

    again = write(options, task, slow())

    assert again.already_stored >= 150 - 100
    assert sorted(data_of(js, name)) == list(range(400))


def test_rows_that_tell_a_size_are_recovered(js, ledger, options, new_stream):
    """A stored row has the size that the server says, whatever its own headers say."""
    name, task = new_stream(**BRIEF), TaskName("q7b", 0, 0)
    options = changed(options, **FAST)
    with pytest.raises(KilledError):
        write(options, task, rows(name, 400, fail_at=100))
    for row in range(100, 150):
        said = [("Nats-Msg-Size", "1000"), ("Nats-Msg-Id", f"{task}-p-{task.task}-{row}")]
        js.publish(f"{name}.{row % 7}", b"%d" % row, said + [("Nats-Msg-Size", "2000")] * (row % 2))
    outlive(js, name)
    again = write(options, task, rows(name, 400))

    assert again.already_stored >= 50
    assert sorted(data_of(js, name)) == list(range(400))


def test_ids_of_the_rows_own_are_recovered(js, ledger, options, new_stream):
    """Rows with a msg_id, and with one among their headers, are found by it."""
    name, task = new_stream(**BRIEF), TaskName("q8", 0, 0)
    options = changed(options, **FAST)
    ids = {"msg_id": lambda row: f"order-{row}"}
    with pytest.raises(KilledError):
        write(options, task, rows(name, 400, fail_at=200, **ids))
    outlive(js, name)
    again = write(options, task, rows(name, 400, **ids))

    assert (again.already_stored, again.acked) == (
        js.stream_info(name).messages - again.acked,
        400 - again.already_stored,
    )
    assert sorted(data_of(js, name)) == list(range(400))


def test_streams_that_come_later_are_noted_first(js, ledger, options, new_stream):
    """A task that reaches its second stream in a later batch can be completed there as well."""
    one, two, task = new_stream(**BRIEF), new_stream(**BRIEF), TaskName("q9", 0, 0)
    options = changed(options, **FAST)

    def both(fail=False):
        yield from rows(one, 200)
        yield from rows(two, 200, fail_at=100 if fail else None)

    with pytest.raises(KilledError):
        write(options, task, both(fail=True))
    outlive(js, one, two)
    write(options, task, both())

    assert data_of(js, one) == list(range(200))
    assert sorted(data_of(js, two)) == list(range(200))


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_rows_that_were_replaced_since_are_not_written_again(js, ledger, options, new_stream, keep):
    """Where a stream keeps few messages of a subject, the end is that of one undisturbed write."""
    rng = random.Random(keep)
    name = new_stream(max_msgs_per_subject=keep, **BRIEF)
    options = changed(options, **FAST)
    keys = [rng.randrange(12) for _ in range(600)]

    def input(fail_at=None):
        for batch in rows(name, 600, 50, fail_at=fail_at):
            at = int(batch["data"][0].as_py())
            subject = pa.array([f"{name}.{key}" for key in keys[at : at + len(batch)]])
            yield batch.set_column(0, "subject", subject)

    task = TaskName(f"q10-{keep}", 0, 0)
    with pytest.raises(KilledError):
        write(options, task, input(rng.randrange(50, 550)))
    outlive(js, name)
    write(options, task, input())
    expected = sorted(
        row for key in set(keys) for row in [r for r in range(600) if keys[r] == key][-keep:]
    )

    assert sorted(data_of(js, name)) == expected


def test_own_ids_on_a_stream_that_replaces_are_refused_after_a_failure(
    js, ledger, options, new_stream
):
    """Which of them were stored and replaced cannot be told, and is not guessed."""
    name, task = new_stream(max_msgs_per_subject=1), TaskName("q11", 0, 0)
    ids = {"msg_id": lambda row: f"order-{row}"}
    with pytest.raises(KilledError):
        write(options, task, rows(name, 400, fail_at=200, **ids))

    with pytest.raises(LedgerError, match="leave msg_id out, or set exactlyOnce=false"):
        write(options, task, rows(name, 400, **ids))


def test_a_stream_that_lost_what_was_stored_is_an_error(js, ledger, options, new_stream):
    """When messages behind the noted sequence are gone, it says so and how to go on."""
    name, task = new_stream(), TaskName("q12", 0, 0)
    with pytest.raises(KilledError):
        write(options, task, rows(name, 400, fail_at=200))
    js.purge(name, None, 50)

    with pytest.raises(LedgerError, match=r"begins at sequence 50.*nats kv del SPARK_LEDGER q12"):
        write(options, task, rows(name, 400))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"retention": "workqueue"}, "workqueue retention: what was read is gone"),
        ({"retention": "interest"}, "interest retention"),
        ({"duplicate_window": 10**9}, "duplicate_window of 1s, less than two ackTimeouts of 5s"),
        (
            {
                "max_msgs_per_subject": 1,
                "subject_transform": {"src": "T.>", "dest": "U.>"},
                "subjects": ["T.>"],
            },
            "both a subject_transform and max_msgs_per_subject",
        ),
    ],
    ids=["workqueue", "interest", "window", "transform"],
)
def test_a_stream_that_cannot_keep_the_promise_is_refused(
    js, ledger, options, new_stream, config, message
):
    """The error says what of the stream does not allow it, before a row is published."""
    name = new_stream(**config)
    subject = "T" if "subjects" in config else name

    with pytest.raises(
        OptionError, match=f"option 'exactlyOnce': stream '{name}' has .*{message}|{message}"
    ):
        write(options, TaskName("q13", 0, 0), rows(subject, 10))
    assert js.stream_info(name).messages == 0


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"retention": "workqueue"}, "workqueue retention"),
        ({"max_age": 10**12}, "has a max_age: it may forget"),
        ({"subjects": ["other.>"]}, "is no bucket of this name"),
        ({"subjects": [], "mirror": {"name": "ORIGIN"}}, COPIED.format("mirror")),
        ({"sources": [{"name": "ORIGIN"}]}, COPIED.format("sources")),
    ],
    ids=["retention", "age", "subjects", "mirror", "sources"],
)
def test_a_stream_that_is_no_ledger_is_refused(js, new_stream, config, message):
    """A bucket of the ledger's name that would lose records is an error that says why."""
    js.client.request(f"{js.prefix}.STREAM.DELETE.{STREAM}")
    new_stream(STREAM, **({"subjects": ["$KV.SPARK_LEDGER.>"]} | config))

    with pytest.raises(LedgerError, match=message):
        Ledger(js).ensure()


def test_a_deleted_record_writes_the_task_anew(js, ledger, options, new_stream):
    """What an operator deletes with `nats kv del` is as if it had never been."""
    name, task = new_stream(**BRIEF), TaskName("q15", 0, 0)
    options = changed(options, **FAST)
    write(options, task, rows(name, 10))
    js.publish(f"$KV.SPARK_LEDGER.{task}", b"", [("KV-Operation", "DEL")])
    outlive(js, name)

    assert write(options, task, rows(name, 10)).acked == 10
    assert js.stream_info(name).messages == 20


def test_a_task_into_several_streams(js, ledger, options, new_stream):
    """Rows go to their streams, in the order of each subject."""
    names = [new_stream() for _ in range(3)]
    batches = [
        batch.set_column(
            0,
            "subject",
            pa.array([f"{names[row.as_py() % 3]}.{row.as_py() % 7}" for row in
                      batch["data"].cast(pa.int64())]),
        )
        for batch in rows(names[0], 5000, 700)
    ]  # fmt: skip
    written = write(options, TaskName("q16", 0, 0), batches)

    assert written.acked == 5000
    for place, name in enumerate(names):
        found = [(subject, int(data)) for subject, data in stored(js, name)]
        assert sorted(row for _, row in found) == list(range(place, 5000, 3))
        for key in range(7):
            of_key = [row for subject, row in found if subject == f"{name}.{key}"]
            assert of_key == sorted(of_key)


def test_a_rewound_checkpoint_is_an_error(js, ledger, options, new_stream):
    """A batch before the committed one is no replay: its rows would be dropped for ever."""
    name = new_stream()
    ledger.commit("q18", 7, 1, {})

    with pytest.raises(LedgerError, match=r"batch 7 .*its checkpoint was rewound"):
        write(options, TaskName("q18", 6, 0), rows(name, 10))
    assert js.stream_info(name).messages == 0


def test_a_driver_that_was_thought_dead_takes_no_batch_back(js, ledger):
    """Of two drivers of a query the slower one must not make the ledger forget what was written."""
    ledger.commit("q30", 3, 1, {"rows": 1})
    with pytest.raises(WriterFencedError, match="another driver runs query q30"):
        ledger.commit("q30", 2, 1, {"rows": 1})
    ledger.commit("q30", 3, 1, {"rows": 1})  # the same batch once more is none

    kept = js.last_messages(STREAM, ["$KV.SPARK_LEDGER.q30.committed"])[0]
    assert json.loads(kept.data) == {"batch": 3, "streams": {}, "rows": 1}


@pytest.mark.parametrize("how", ["order", "size", "fewer"])
def test_an_input_that_changed_is_an_error(js, ledger, options, new_stream, how):
    """Where the rows of a number differ between attempts, made ids would lose some: it says so."""
    name, task = new_stream(), TaskName(f"q19-{how}", 0, 0)

    def killed():
        yield from rows(name, 300)
        eventually(lambda: js.stream_info(name).messages >= 200)  # more than "fewer" has
        raise KilledError

    with pytest.raises(KilledError):
        write(options, task, killed())
    changed = {
        "order": lambda: [b.take(pa.array(range(len(b))[::-1])) for b in rows(name, 600)],
        "size": lambda: [b.set_column(1, "data", pa.array(["long"] * len(b)))
                         for b in rows(name, 600)],
        "fewer": lambda: rows(name, 100),
    }[how]()  # fmt: skip

    with pytest.raises(LedgerError, match="not the same rows in the same order at every attempt"):
        write(options, task, changed)


def test_an_attempt_without_rows_commits(js, ledger, options, new_stream):
    """So a query leaves out a batch whose rows another one has committed (`standby`)."""
    name, task = new_stream(), TaskName("q31", 0, 0)

    def killed():
        yield from rows(name, 200)
        eventually(lambda: js.stream_info(name).messages == 200)
        raise KilledError

    with pytest.raises(KilledError):
        write(options, task, killed())
    again = write(options, task, [])
    ledger.commit("q31", 0, 1, {})

    assert again == Written(0, 0, 0, 0, 0, 0)
    assert data_of(js, name) == list(range(200))


def test_a_batch_with_fewer_tasks_than_before_does_not_commit(js, ledger, options, new_stream):
    """Rows of a task that is not there any more have other ids now."""
    name = new_stream()
    for task in range(2):
        write(options, TaskName("q20", 0, task), rows(name, 5))

    with pytest.raises(LedgerError, match=r"has 1 tasks, but an earlier attempt of it had task 1"):
        ledger.commit("q20", 0, 1, {})
    js.publish("$KV.SPARK_LEDGER.q20.0.1", b"", [("KV-Operation", "DEL")])  # as its text says
    ledger.commit("q20", 0, 1, {})


def test_rolled_up_rows_stay_rolled_up(js, ledger, options, new_stream):
    """A purge among the rows is not undone by an attempt that finds only it."""
    name = new_stream(allow_rollup_hdrs=True, **BRIEF)
    js.publish(f"{name}.other", b"first", [])
    options, task = changed(options, allow_rollup=True, **FAST), TaskName("q22", 0, 0)
    kind = pa.map_(pa.string(), pa.string())

    def history(fail=False):
        for row, rollup in enumerate([None, None, "sub", None, None]):
            if fail and row == 4:
                eventually(lambda: js.stream_info(name).last_seq == 5)
                raise KilledError
            yield pa.record_batch({
                "subject": pa.array([f"{name}.key"]), "data": pa.array([f"v{row}"]),
                "headers": pa.array([[("Nats-Rollup", rollup)] if rollup else None], kind),
            })  # fmt: skip

    with pytest.raises(KilledError):
        write(options, task, history(fail=True))
    outlive(js, name)
    written = write(options, task, history())

    assert (written.already_stored, written.acked) == (4, 1)
    assert [data for _, data in stored(js, name)] == [b"first", b"v2", b"v3", b"v4"]


def test_a_slow_batch_notices_that_it_was_overtaken(js, ledger, options, new_stream):
    """It stops, whatever it still holds; the other has all of its rows, none twice."""
    name, task = new_stream(**BRIEF), TaskName("q23", 0, 0)
    options = changed(options, max_in_flight=1, **FAST)

    def overtake():
        eventually(lambda: js.stream_info(name).messages)
        write(changed(options, max_in_flight=4096), task, rows(name, 60_000, 60_000))

    overtaking = threading.Thread(target=overtake, daemon=True)
    overtaking.start()

    with pytest.raises(WriterFencedError):
        write(options, task, rows(name, 60_000, 60_000))
    overtaking.join(60)
    assert sorted(data_of(js, name)) == list(range(60_000))
