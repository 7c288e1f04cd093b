"""
docs/throttle-protocol.md is enough to write either side from: producers and controllers that share
no code with the package, and ours, understand each other.
"""

from __future__ import annotations

import signal
from collections import Counter

import pytest

from pyspark_jetstream import throttledSubjects
from pyspark_jetstream.outbox.throttling import operators

from ..kits import barethrottle as bare
from .test_publisher import stored
from .test_throttle import Task
from .test_throttle_begin import count, sink, write, writing
from .test_throttle_job import PATIENT, rows_of, start, until

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
    monkeypatch.setattr(operators, "PATIENCE_S", 60.0)
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
            *PATIENT,
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
    rows = rows_of(out)
    amid = Counter(subjects_of(js, name)[begun : ended - 1])

    assert (first.ended_by, second.ended_by) == ("503", "active")
    assert second.commands_first == 1
    assert set(amid) == {b, c}
    assert program.returncode == 0, err
    assert {row["producer"]: row["state"] for row in rows} == {
        "1": "acknowledged", "2": "acknowledged", "3": "does not know the protocol",
    }  # fmt: skip
    assert {row["commands missed"] for row in rows} == {"0"}
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
            "--reason", "BrokerProduceQuotaExceeded", "--throttle-subject", control,
        )  # fmt: skip
        out, err = program.communicate(timeout=60)
        until(lambda: producer.commands[-1]["pause_for_millis"] == 0)
        stood = producer.published
        until(lambda: producer.published > stood)

    assert program.returncode == 0, err
    assert [row["state"] for row in rows_of(out)] == ["acknowledged"]
    assert {each["throttling_reason"] for each in producer.commands} == {
        "BrokerProduceQuotaExceeded"
    }


def test_their_producer_under_their_controller(js, nats_server, new_stream, control):
    """
    The page's two sides understand each other, too.
    """
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


def test_b26_our_writer_under_their_controller_s_rate(js, nats_server, new_stream, control):
    """
    B26: it says that it keeps rates, is told nothing of a filter, stores nothing of it and all of
    the others; says that rows wait; at its share rows go, in order, each once; the end lifts.
    """
    name = new_stream()
    a, b = f"{name}.a", f"{name}.b"
    options = sink(nats_server, throttle_subject=control)
    with bare.Controller(nats_server.url, [a], control, {a: 0.0}) as controller:
        task = Task(nats_server, options, [a, b])
        task.start()
        until(lambda: js.stream_info(name).messages >= 1_000)
        until(lambda: controller.waited.get(7))
        none = count(js, name)
        controller.shares = {a: 100.0}
        until(lambda: count(js, name)[a] >= 50)
        said = controller.producers[7]
        stored_by_then = js.stream_info(name).messages
    counts = task.finish()
    found = stored(js, name)

    assert none[a] == 0
    assert said["feature_flags"]["supports_publish_throttling_rate"] is True
    (rate,) = said["rates"]
    assert (rate["subject"], rate["throttling_reason"]) == (a, "TopicProduceQuotaExceeded")
    assert 0 <= rate["msg_in_counter"] <= stored_by_then
    assert {each["subject"] for each in said["throttled"]} <= {a}
    assert controller.acknowledged[7]
    assert counts.acked == counts.rows == len(found)
    for subject in (a, b):
        rows = [int(data) for each, data in found if each == subject]
        assert rows == sorted(rows)


def test_b26_our_short_tasks_under_their_controller_s_rate(js, nats_server, new_stream, control):
    """
    B7, B26: each says that rows wait, and when it ends that none do; none stores a row before it
    has a share.
    """
    name = new_stream()
    a = f"{name}.a"
    options = sink(nats_server, throttle_subject=control)
    with bare.Controller(nats_server.url, [a], control, {a: 1000.0}) as controller:
        for number in range(1, 6):
            assert write(options, [a], producer_id=number).acked == 20

        def last() -> list[tuple[str, int]]:
            words = [controller.producers[number]["rates"] for number in range(1, 6)]
            return [(each[0]["waiting_for"], each[0]["msg_in_counter"]) for each in words if each]

        until(lambda: last() == [("", 20)] * 5)

    assert controller.began == [1, 2, 3, 4, 5]
    assert controller.waited == {number: [a] for number in range(1, 6)}
    assert count(js, name) == {a: 100}


def test_b26_a_rate_lapses_with_their_controller(js, nats_server, new_stream, control):
    """
    B26: nobody gives it any more, and all rows go.
    """
    name = new_stream()
    a = f"{name}.a"
    options = sink(nats_server, throttle_subject=control)
    with bare.Controller(nats_server.url, [a], control, {a: 0.0}) as controller:
        with writing(options, [a]) as ended:
            until(lambda: controller.waited.get(7))
            controller.lifts = False
            held = js.stream_info(name).messages
            controller.ending.set()

    assert held == 0
    assert ended[0].acked == 20


def test_b26_their_producers_under_our_quota(js, nats_server, new_stream, control):
    """
    B26: one that keeps rates gets its share, and no pause; one that does not gets pauses of a
    second at most; the program shows what the first publishes, and acknowledges that all have.
    """
    name = new_stream(allow_direct=True)
    a, b = f"{name}.a", f"{name}.b"
    how = ("--limit", f"{name}.>=100/s", "--throttle-subject", control, *PATIENT)
    with (
        bare.Producer(nats_server.url, 1, [a], control, keeps_rates=True) as keeper,
        bare.Producer(nats_server.url, 2, [b], control) as old,
    ):
        until(lambda: keeper.published and old.published)
        program = start(nats_server, "quota", *how)
        until(lambda: len(old.commands) > 10)
        until(lambda: any(each.get(RATE) for each in keeper.commands))
        begun = keeper.published
        until(lambda: keeper.published > begun + 20)
        with bare.Producer(nats_server.url, 3, [a], control, keeps_rates=True) as late:
            until(lambda: late.published > 10)
            program.send_signal(signal.SIGINT)
            out, err = program.communicate(timeout=60)
            until(lambda: not keeper.commands[-1]["pause_for_millis"])
            free = keeper.published
            until(lambda: keeper.published > free + 100)
    rows = {row["filter, writers"]: row for row in rows_of(out)}

    assert program.returncode == 0, err
    assert {each["pause_for_millis"] for each in keeper.commands[:-1]} == {5000}
    assert all(RATE in each for each in keeper.commands[:-1])
    assert RATE not in keeper.commands[-1]
    assert all(RATE not in each and each["pause_for_millis"] <= 1000 for each in old.commands)
    assert (late.ended_by, late.commands_first) == ("active", 1)
    assert late.commands[0][RATE] == 0
    assert rows.keys() == {f"{name}.>", "1", "3"}
    assert int(rows["1"]["published"]) > 20


def test_b26_a_producer_that_does_not_keep_its_word(js, nats_server, new_stream, control):
    """
    B23, B26: it says that it keeps rates, and acknowledges none: it is told to pause its
    connection, for a second at a time, and named if it does not do that either.
    """
    name = new_stream(allow_direct=True)
    how = ("--limit", f"{name}.>=100/s", "--throttle-subject", control, *PATIENT)

    class Deaf(bare.Producer):
        def hear(self, message, said, now):
            if said.get("type") == "throttle_producer":
                self.commands.append(said)
            else:
                super().hear(message, said, now)

    with Deaf(nats_server.url, 1, [f"{name}.a"], control, keeps_rates=True) as deaf:
        until(lambda: deaf.published)
        arguments = [each for each in how if each not in PATIENT]
        program = start(nats_server, "quota", *arguments, "--receipt-wait", "400ms")
        pending = "ConnectionPendingMessagesBreach"
        until(lambda: sum(e["throttling_reason"] == pending for e in deaf.commands) >= 2)
        program.send_signal(signal.SIGINT)
        out, err = program.communicate(timeout=60)

    assert program.returncode == 3
    assert "not acknowledged by 1: they may go on publishing" in err
    assert {e["pause_for_millis"] for e in deaf.commands if e["throttling_reason"] == pending} <= {
        0, 1000,
    }  # fmt: skip
