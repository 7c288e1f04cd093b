"""What is shed and what is not: a real server, paused subjects, limits, and another stream's."""

import threading
import time

import pyarrow as pa
import pytest

from pyspark_jetstream.errors import ProducerThrottledError
from pyspark_jetstream.outbox.priority import Priority
from pyspark_jetstream.outbox.throttling import throttle
from pyspark_jetstream.publish.settings import SinkOptions
from pyspark_jetstream.write.exactlyonce.ids import Ids, TaskName
from pyspark_jetstream.write.exactlyonce.ledger import Ledger

from ..kits.options import FIXED, changed, connection_of, priorities_of, rules_of, sink_of
from ..kits.writing import attempt
from .test_publisher import stored

SHEDDABLE = frozenset({Priority.NORMAL, Priority.NON_CRITICAL})


def narrow(server, **changes) -> SinkOptions:
    """Whatever may be shed is, with a queue and a window that are full at once."""
    options = sink_of(connection_of(server.url), **FIXED, max_in_flight=8)
    rules = rules_of(queue_size=20, sheddable=SHEDDABLE, held_bytes=200_000)
    return changed(options, drops=True, rules=rules, **changes)


def test_a12_another_stream_s_push_back_sheds_nothing(js, nats_server, new_stream):
    """A12: only rows of the stream that is full are shed, though all wait in one queue."""
    full, healthy = new_stream(max_msgs=10, discard="new"), new_stream()
    rows = [f"{full if i % 5 == 0 else healthy}.{i % 14}" for i in range(3_000)]
    counts, failed = write(nats_server, rows, lambda: js.purge(full, None, None),
                           when=lambda: js.stream_info(healthy).messages == 2_400)  # fmt: skip

    assert failed is None
    assert js.stream_info(healthy).messages == 2_400
    assert counts.dropped > 0
    assert counts.acked + counts.dropped == 3_000


def write(server, rows, make_room, when, every_s=0.02):
    """
    The counts of writing these rows, as a task of a query does, or its error.

    Args:
        make_room: called again and again…
        when: …as soon as this holds.
    """
    options = narrow(server, publish_timeout_s=60.0, ledger=False)
    found: list[object] = []

    def run():
        blocks = [
            pa.record_batch({"subject": pa.array(part), "data": pa.array(part)})
            for part in (rows[low : low + 500] for low in range(0, len(rows), 500))
        ]
        try:
            found.append(attempt(options, blocks, TaskName("w", 0, 0), Ids("w")))
        except ProducerThrottledError as error:
            found.append(error)

    task = threading.Thread(target=run, daemon=True)
    task.start()
    deadline = time.monotonic() + 60
    while task.is_alive() and time.monotonic() < deadline and not when():
        time.sleep(0.02)
    while task.is_alive() and time.monotonic() < deadline:
        make_room()
        time.sleep(every_s)
    task.join(60)
    (last,) = found
    return (None, last) if isinstance(last, Exception) else (last, None)


# ── a stream that is full ────────────────────────────────────────────────────────────────────

BY_SUBJECT = (("*.critical.>", Priority.CRITICAL), ("*.low.>", Priority.NON_CRITICAL))


@pytest.mark.parametrize("ledger", [False, True], ids=["once at least", "exactly once"])
@pytest.mark.parametrize("room", [50, 0])
def test_a13_a_full_stream_leaves_no_row_behind(js, nats_server, new_stream, room, ledger):
    """A13, I1, I2: critical rows are stored, the others are, or are dead letters, once each."""
    name = new_stream(max_msgs=room + 1, discard="new")
    dead = new_stream()
    Ledger(js).ensure()
    js.publish(f"{name}.before", b"-1", [])
    rows = [f"{name}.{'critical' if i < room // 2 else 'low'}.{i % 7}" for i in range(400)]
    options = changed(
        sink_of(connection_of(nats_server.url), publish_timeout_s=10.0),
        priorities=priorities_of(subjects=BY_SUBJECT),
        rules=rules_of(queue_size=20, sheddable=frozenset({Priority.NON_CRITICAL})),
        dead_letter_subject=f"{dead}.{{subject}}", ledger=ledger,
    )  # fmt: skip
    batch = pa.record_batch({"subject": pa.array(rows), "data": pa.array(map(str, range(400)))})
    written = written_of(options, batch, name)
    found, letters = stored(js, name), stored(js, dead)

    assert written.adds_up
    assert (written.acked, written.dead_letters) == (room, 400 - room)
    assert sorted(int(data) for _, data in found + letters) == list(range(-1, 400))
    assert {subject.split(".")[2] for subject, _ in letters} == {"low"}


def test_a13_critical_rows_that_find_no_room_fail_the_task(
    js, nats_server, new_stream, monkeypatch
):
    """I2: they are not shed, whatever the policy; the error says what to do."""
    monkeypatch.setattr(throttle, "_SHARE", 0.2)  # answers may take their time
    name = new_stream(max_msgs=10, discard="new")
    rows = [f"{name}.critical.{i % 3}" for i in range(50)]
    options = changed(
        narrow(nats_server), publish_timeout_s=8.0, priorities=priorities_of(subjects=BY_SUBJECT)
    )
    batch = pa.record_batch({"subject": pa.array(rows), "data": pa.array(rows)})
    with pytest.raises(ProducerThrottledError, match="the stream is full: raise its limit"):
        written_of(options, batch, name)


def written_of(options, batch, name):
    """What a task has written of this batch."""
    return attempt(options, [batch], TaskName(f"w-{name}", 0, 0), Ids(f"w-{name}"))
