"""
docs/overload.md is enough to write either side from: producers and controllers that share
no code with the package, and ours, understand each other.
"""

from __future__ import annotations

import json
import signal
from collections import Counter

import pytest

from pyspark_jetstream import throttledSubjects
from pyspark_jetstream.publish import pauses

from ..kits import barethrottle as bare
from .test_publisher import stored
from .test_throttle import Task
from .test_throttle_begin import count, sink, write, writing
from .test_throttle_job import PATIENT, start, states, until

RATE = "publish_throttling_rate_in_msg"


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
    until(lambda: js.stream_info(name).messages >= 1_000)
    with bare.Controller(nats_server.url, [f"{name}.a"], control) as controller:
        until(lambda: controller.acknowledged)
        paused = js.publish(mark, b"", [])
        until(lambda: len(controller.acknowledged[7]) >= 3)  # it was issued again
        until(lambda: js.stream_info(name).last_seq >= paused + 1_000)
        until(lambda: controller.producers[7]["throttled"])
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


def test_b7_our_short_tasks_under_their_controller(
    js, nats_server, new_stream, control, monkeypatch
):
    """
    B7: tasks that begin amid the pause store nothing of the subject before its end, and other rows
    at once; they say that they begin, and acknowledge.
    """
    monkeypatch.setattr(pauses, "PATIENCE_S", 60.0)
    name = new_stream()
    a, b = f"{name}.a", f"{name}.b"
    options = sink(nats_server, throttle_subject=control)
    with bare.Controller(nats_server.url, [a], control) as controller:
        with writing(options, [a, b], producer_id=100, rows=40) as ended:
            for number in range(5):
                assert write(options, [b], producer_id=number).acked == 20
            until(lambda: js.stream_info(name).messages >= 120)
            amid = count(js, name)
            waits = not ended
            controller.ending.set()
    assert amid == {b: 120}
    assert waits
    assert count(js, name) == {a: 20, b: 120}
    assert sorted(controller.began) == [0, 1, 2, 3, 4, 100]
    assert set(controller.acknowledged) == {0, 1, 2, 3, 4, 100}


def paused(options):
    """The producers that say which of their subjects they pause."""
    return {(each.producer_id, each.subject) for each in throttledSubjects(options, "1s")}


# ── our program, their producers ─────────────────────────────────────────────────────────────


@pytest.mark.parametrize("names_itself", [False, True], ids=["as in the document", "as ours"])
def test_b2_b12_their_producers_under_our_program(
    js, nats_server, new_stream, control, names_itself
):
    """
    B2, B7, B22: one that is there, one that begins amid the pause, and one that knows no commands;
    receipts of `request_id` alone are acknowledgements, and nobody is paused as a whole.
    """
    name = new_stream(allow_direct=True)
    a, b, c = (f"{name}.{each}" for each in "abc")
    how = {"names_itself": names_itself}
    with (
        bare.Producer(nats_server.url, 1, [a, b], control, **how) as first,
        bare.Producer(nats_server.url, 3, [c], control, supports=False) as unable,
    ):
        until(lambda: first.published and unable.published)
        program = start(
            nats_server, "pause", "--subject", a, "--for", "5m", "--throttle-subject", control,
            "--json", *PATIENT,
        )  # fmt: skip
        until(lambda: first.commands)
        with bare.Producer(nats_server.url, 2, [a, b], control, **how) as second:
            until(lambda: second.published)
            begun = js.publish(f"{name}.mark", b"", [])
            until(lambda: len(first.commands) >= 3 and len(second.commands) >= 2)
            asked = {"servers": nats_server.url, "throttleSubject": control}
            until(lambda: paused(asked) == {(1, a), (2, a)})
            ended = js.publish(f"{name}.mark", b"", [])
            program.send_signal(signal.SIGINT)
            out, err = program.communicate(timeout=60)
            until(lambda: a in subjects_of(js, name)[ended:])
    amid = Counter(subjects_of(js, name)[begun : ended - 1])

    assert (first.ended_by, second.ended_by) == ("503", "active")
    assert second.commands_first == 1
    assert set(amid) == {b, c}
    assert program.returncode == 0, err
    found = json.loads(out)
    assert {each["producer"]: each["state"] for each in found["producers"]} == {
        "1": "acknowledged", "2": "acknowledged", "3": "does not know the protocol",
    }  # fmt: skip
    assert {each["throttling_reason"] for each in first.commands + second.commands} == {
        "TopicProduceQuotaExceeded"
    }
    assert [each["pause_for_millis"] > 0 for each in first.commands[-2:]] == [True, False]
    assert unable.commands == []


def test_b22_a_connections_reason_under_our_program(js, nats_server, new_stream, control):
    """
    B22, B6: the producer pauses as a whole; the program waits for no receipt, and lifts at the end.
    """
    name = new_stream()
    with bare.Producer(nats_server.url, 1, [f"{name}.a"], control) as producer:
        until(lambda: producer.published)
        program = start(
            nats_server, "pause", "--subject", f"{name}.a", "--for", "4s",
            "--reason", "BrokerProduceQuotaExceeded", "--throttle-subject", control, "--json",
        )  # fmt: skip
        out, err = program.communicate(timeout=60)
        until(lambda: producer.commands[-1]["pause_for_millis"] == 0)
        stood = producer.published
        until(lambda: producer.published > stood)

    assert program.returncode == 0, err
    assert states(json.loads(out)) == ["acknowledged"]
    assert {each["throttling_reason"] for each in producer.commands} == {
        "BrokerProduceQuotaExceeded"
    }


def test_their_producer_under_their_controller(js, nats_server, new_stream, control):
    """The page's two sides understand each other, too."""
    name = new_stream()
    a, b = f"{name}.a", f"{name}.b"
    with bare.Controller(nats_server.url, [a], control) as controller:
        with bare.Producer(nats_server.url, 1, [a, b], control) as producer:
            until(lambda: producer.published > 20)
            amid = Counter(subjects_of(js, name))
        until(lambda: 1 in controller.ended)

    assert set(amid) == {b}
    assert producer.ended_by == "active"
    assert controller.began == [1]
    assert len(controller.acknowledged[1]) >= 1


# ── rates ────────────────────────────────────────────────────────────────────────────────────
