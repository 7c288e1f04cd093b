"""
docs/overload.md is enough to write an operator from: one that shares no code with the package
pauses our writers. `test_throttle_job` has our program, and producers that share no code with it.
"""

from __future__ import annotations

import pytest

from ..kits import barethrottle as bare
from ..kits.shared import eventually
from .test_publisher import stored
from .test_throttle import Task
from .test_throttle_begin import sink


@pytest.fixture
def control(new_stream):
    """A control subject of the test's own."""
    return f"control.{new_stream()}"


def subjects_of(js, stream):
    """The subject of every message, in order of sequence."""
    return [subject for subject, _ in stored(js, stream)]


# ── their controller, our writers ────────────────────────────────────────────────────────────


def test_b7_b12_our_writer_under_their_controller(js, nats_server, new_stream, control):
    """
    B7, B12, B21: a writer that is there is found, told, acknowledges, and stores nothing of the
    subject behind its receipt; it says that it is paused; the end lifts.
    """
    name = new_stream()
    a, b, mark = (f"{name}.{each}" for each in ("a", "b", "mark"))
    task = Task(nats_server, sink(nats_server, throttle_subject=control), [a, b])
    task.start()
    eventually(lambda: js.stream_info(name).messages >= 1_000)
    with bare.Controller(nats_server.url, [f"{name}.a"], control) as controller:
        eventually(lambda: controller.acknowledged)
        paused = js.publish(mark, b"", [])
        eventually(lambda: len(controller.acknowledged[7]) >= 3)  # it was issued again
        eventually(lambda: js.stream_info(name).last_seq >= paused + 1_000)
        eventually(lambda: controller.producers[7]["throttled"])
        said = controller.producers[7]
        free = js.publish(mark, b"", [])
    counts = task.finish()
    found = subjects_of(js, name)

    assert set(found[paused : free - 1]) == {b}
    assert a in found[free:]
    assert counts.acked == counts.rows == len(found) - 2
    assert set(said["subjects_sent"]) == {a, b}
    (one,) = said["throttled"]
    assert 0 < one.pop("pause_for_millis") <= bare.PAUSE_MS
    assert one.pop("request_id") > 0
    assert one == {
        "subject": a, "throttling_reason": "TopicProduceQuotaExceeded", "filter": a,
        "source": "operator",
    }  # fmt: skip
