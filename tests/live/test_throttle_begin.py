"""A pause reaches a writer before its first row, however short its task is (overload.md B7)."""

import json
import signal
import socket
import threading
import time
from collections import Counter
from contextlib import closing, contextmanager
from dataclasses import replace
from select import select

import pyarrow as pa
import pytest

from pyspark_jetstream import isThrottled, throttledSubjects
from pyspark_jetstream.client import wire
from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.errors import OptionError
from pyspark_jetstream.outbox.throttling.throttleprotocol import (
    DISCOVER,
    Active,
    Producer,
    Reason,
    Receipt,
    ThrottleProducer,
    understand,
)
from pyspark_jetstream.publish import pauses, publisher
from pyspark_jetstream.publish.context import WriteContext
from pyspark_jetstream.publish.telemetry import Origin
from pyspark_jetstream.values import Secret
from pyspark_jetstream.write.rows import MessageBuilder

from ..kits.clients import serving
from ..kits.options import connection_of, sink_of
from ..kits.shared import eventually
from .test_publisher import stored
from .test_throttle import CONTROL, Operator, Task
from .test_throttle_job import PATIENT, run, start

QUOTA = Reason.TopicProduceQuotaExceeded
FOR_EVER_S = 300.0


def sink(server, **changes):
    """Options of a control subject that no other test uses: tasks of one process remember it."""
    return sink_of(connection_of(server.url), **{"ack_timeout_s": 2.0} | changes)


def write(options, subjects, producer_id=7, rows=20, at=lambda client: None):
    """A short task: one row a subject, so many times."""
    names = [subjects[row % len(subjects)] for row in range(rows)]
    batch = pa.record_batch({
        "subject": pa.array(names), "data": pa.array([str(row) for row in range(rows)]),
    })  # fmt: skip
    builder = MessageBuilder(options, id_prefix=f"{subjects[0]}-{producer_id}")
    with closing(Client(options.connection)) as client:
        at(client)
        context = WriteContext(options, origin=Origin(producer_id))
        return publisher.publish(client, context, [builder.build(batch)])


@contextmanager
def writing(*arguments, **how):
    """Such a task on a thread; what it counted, or raised, is in the list when it has ended."""
    ended: list[object] = []

    def body():
        try:
            ended.append(write(*arguments, **how))
        except Exception as error:
            ended.append(error)

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    yield ended
    thread.join(60)
    assert ended


@contextmanager
def listening(client, subject):
    """Somebody who subscribes and never answers."""
    client.connection.subscribe(subject)
    client.connection.ping(60.0)
    yield
    client.close()


def count(js, stream):
    """Messages by subject."""
    return Counter(subject for subject, _ in stored(js, stream))


@pytest.fixture
def control(new_stream):
    """A control subject of the test's own."""
    return f"control.{new_stream()}"


@pytest.fixture
def patient(monkeypatch):
    """Who waits for a controller in vain waits for ever: what ends is not ended by time."""
    monkeypatch.setattr(pauses, "PATIENCE_S", FOR_EVER_S)


def test_b7_a_dead_letter_does_not_wait(js, nats_server, new_stream, control, patient):
    """B7: while rows wait for the answer, one that can be no message is a dead letter."""
    name = new_stream()
    controller = Client(connection_of(nats_server.url))
    letters = {"rejects": True, "dead_letter_subject": f"{name}.dead"}
    options = sink(nats_server, throttle_subject=control, **letters)
    with (
        listening(controller, f"{control}.active"),
        writing(options, [f"{name}.a", "is..none"]) as ended,
    ):
        eventually(lambda: js.stream_info(name).messages >= 10)
        amid = count(js, name)
        controller.connection.send(wire.pub(f"{control}.7", Active(1).encode()))

    assert amid == {f"{name}.dead": 10}
    assert (ended[0].acked, ended[0].dead_letters) == (10, 10)
    assert count(js, name) == {f"{name}.a": 10, f"{name}.dead": 10}


def test_b7_short_tasks_under_the_program(js, nats_server, new_stream, control, patient):
    """B7, B24: tasks shorter than a second are paused, too, and the program names them."""
    name = new_stream(allow_direct=True)
    options = sink(nats_server, throttle_subject=control)
    arguments = ("--subject", f"{name}.a", "--for", "5m", "--throttle-subject", control)
    program = start(nats_server, "pause", *arguments, "--json", *PATIENT)
    eventually(lambda: select([program.stderr], [], [], 0.0)[0])
    said = program.stderr.readline()
    with writing(options, [f"{name}.a"], producer_id=100) as ended:
        for number in range(10):
            assert write(options, [f"{name}.b"], producer_id=number).acked == 20
        listening = []

        def is_told() -> bool:  # a pause lapses while a stopped operator says nothing
            words = "producers", "--throttle-subject", control, "--wait", "1s"
            listening[:] = run(nats_server, *words)[1].get("producers", [])
            return bool(listening and listening[0]["paused"])

        eventually(is_told)
        amid, waits = count(js, name), not ended
        time.sleep(3.0)  # those that ended are known to have
        program.send_signal(signal.SIGINT)
        out, _ = program.communicate(timeout=60)
    told = json.loads(out)

    assert "nobody so far" in said
    assert amid == {f"{name}.b": 200}
    assert waits
    assert count(js, name) == {f"{name}.a": 20, f"{name}.b": 200}
    assert program.returncode == 0
    assert [each["producer"] for each in told["producers"]] == ["100"]
    assert told["producers"][0]["receipts"] > 0
    assert told["silent"] == []
    (one,) = listening
    (paused,) = one["paused"]
    assert one["supports_throttle"]
    assert (paused["subject"], paused["filter"]) == (f"{name}.a", f"{name}.a")
    assert (paused["reason"], paused["source"]) == (QUOTA.name, "operator")


def test_b7_who_listens_and_never_answers_is_not_waited_for_long(
    js, nats_server, new_stream, control
):
    """B7: beside a monitor of everything rows go when the patience is over."""
    with listening(Client(connection_of(nats_server.url)), f"{control}.>"):
        options = sink(nats_server, throttle_subject=control)
        assert write(options, [f"{new_stream()}.a"]).acked == 20


def test_b7_without_an_operator_nobody_waits(js, nats_server, new_stream, control, patient):
    """B7, B20: neither where nobody listens nor with throttleSubject=none."""
    name = new_stream()
    options = sink(nats_server, throttle_subject=control)
    for number in range(20):
        assert write(options, [f"{name}.a"], producer_id=number).acked == 20
    with listening(Client(options.connection), f"{control}.active"):
        silent = replace(options, throttle_subject=None)
        assert write(silent, [f"{name}.a"], producer_id=20).acked == 20


LIMITED = """
accounts { A { jetstream: enabled, users: [
  {user: all, password: x}
  {user: some, password: x, permissions: {publish: %s, subscribe: %s}}
] } }
"""


@pytest.mark.parametrize(
    ("publish", "subscribe", "hears"),
    [
        ('["S.>", "$JS.API.>"]', '["spark.jetstream.throttle.*", "_INBOX.>"]', "active"),
        ('">"', '"_INBOX.>"', "nothing"),
    ],
    ids=["ask", "listen"],
)
def test_b7_who_may_not_ask_or_listen_writes_all_the_same(patient, publish, subscribe, hears):
    """B7: a task does not wait for what cannot come; the next one does not ask."""
    limited = LIMITED % (publish, subscribe)
    with serving(limited, user="all", password=Secret("x")) as (server, js):
        connection = connection_of(server.url, user="some", password=Secret("x"))
        options = sink_of(connection, metrics_subject="metrics")  # nor may the first report there
        with listening(js.client, f"{CONTROL}.{hears}"):
            counts = [write(options, ["S.a"], producer_id=number) for number in range(2)]

    assert [each.acked for each in counts] == [20, 20]


def test_b16_is_throttled(js, nats_server, new_stream, control):
    """B16: which subjects of which writer are paused, why, by whom, and until when."""
    name = new_stream()
    a, b = f"{name}.a", f"{name}.b"
    operator = Operator(nats_server)
    task = Task(nats_server, sink(nats_server, throttle_subject=control), [a, b])
    task.start()
    eventually(lambda: js.stream_info(name).messages)
    asking = {"servers": nats_server.url, "throttleSubject": control}
    free = throttledSubjects(asking), isThrottled(asking)
    operator.ask(ThrottleProducer(5, QUOTA, 60.0, f"{name}.a").encode(), subject=control)
    (found,) = throttledSubjects(asking, wait="5s")
    states = [isThrottled(asking, each, wait="5s") for each in (a, b, None)]
    operator.ask(ThrottleProducer(6, QUOTA, 0.0, f"{name}.a").encode(), subject=control)
    task.finish()
    operator.client.close()

    assert free == ([], False)
    assert found[:3] == (7, a, "TopicProduceQuotaExceeded")
    assert found[4:] == (f"{name}.a", "operator", 5)
    assert 0 < found.until.timestamp() - time.time() <= 60
    assert states == [True, False, True]
    assert throttledSubjects(asking) == []  # nobody is there any more
    with pytest.raises(OptionError, match="throttleSubject"):
        isThrottled(asking | {"throttleSubject": "a.>"})


def test_b7_no_row_goes_before_the_answer(js, nats_server, new_stream, control, patient):
    """B7, B5: commands before it are in force when rows go, also on a new connection."""
    name = new_stream()
    a, b = f"{name}.a", f"{name}.b"
    operator = Operator(nats_server)
    connection = operator.client.connection
    words, rows = connection.subscribe(f"{control}.active"), connection.subscribe(f"{name}.>")
    inbox = connection.new_inbox()
    answers = connection.subscribe(inbox)
    connection.ping(60.0)
    heard = []

    def hear(sid):
        """The next message of this subscription; all there were are kept, in order."""
        while True:
            frame = connection.next_frame(time.monotonic() + 60)
            assert frame is not None, heard
            heard.append((frame.sid, frame.subject.decode()))
            if frame.sid == sid:
                return frame

    def say(data, reply=inbox):
        connection.send(wire.pub(f"{control}.7", data, reply))

    def silence():
        """Each answer comes behind whatever the writer has sent until then; its rows so far."""
        for _ in range(20):
            say(DISCOVER)
            hear(answers)
        return [subject for sid, subject in heard if sid == rows]

    clients = []
    with writing(sink(nats_server, throttle_subject=control), [a, b], at=clients.append) as ended:
        first = hear(words)
        say(ThrottleProducer(1, QUOTA, FOR_EVER_S, a, 7).encode())
        receipt = hear(answers)
        held = silence()
        say(Active(1).encode(), "")
        eventually(lambda: js.stream_info(name).messages >= 10)
        amid = silence()
        clients[0].connection._sock.shutdown(socket.SHUT_RDWR)
        again = hear(words)
        say(ThrottleProducer(2, QUOTA, 0.0, a, 7).encode())
        hear(answers)
        late = silence()
        say(Active(1).encode(), "")
    operator.client.close()

    who = Producer(7, True, host=socket.gethostname())
    assert understand(first.data) == who
    assert understand(receipt.data) == Receipt(1, 7)
    assert (held, set(amid), set(late)) == ([], {b}, {b})
    assert understand(again.data)[:2] == who[:2]
    assert ended[0].acked == 20
    assert count(js, name) == {a: 10, b: 10}
