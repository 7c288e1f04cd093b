"""A write under the throttle of operators, and of the server's limits, over a real connection."""

import json
import socket
import threading
import time
from collections import Counter
from dataclasses import replace

import pyarrow as pa
import pytest

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.mapping.subjectmapping import SubjectMapping
from pyspark_jetstream.outbox.targets import Target
from pyspark_jetstream.outbox.throttling.throttleprotocol import (
    DISCOVER,
    Producer,
    Reason,
    Receipt,
    ThrottleProducer,
    understand,
)
from pyspark_jetstream.publish import publisher
from pyspark_jetstream.publish.context import WriteContext
from pyspark_jetstream.publish.settings import SinkOptions
from pyspark_jetstream.publish.telemetry import Origin
from pyspark_jetstream.write.exactlyonce.ids import Ids, TaskName
from pyspark_jetstream.write.exactlyonce.ledger import Ledger

from ..kits.encoder import plain_builder
from ..kits.options import changed, connection_of, sink_of, targets_of
from ..kits.servers import DevServer
from ..kits.shared import eventually
from ..kits.writing import attempt
from .test_publisher import stored

CONTROL = "spark.jetstream.throttle"
ORIGIN = Origin(7, "5f0c", 3, "orders")


class Operator:
    """Says things on the control subject."""

    def __init__(self, server: DevServer, **login: object) -> None:
        self.client = Client(connection_of(server.url, **login))
        self._requests = 0

    def ask(self, data: bytes, timeout_s: float = 30.0, subject: str = CONTROL):
        """The first answer, understood, and the seconds it took; None without one."""
        connection = self.client.connection
        inbox = connection.new_inbox()
        sid = connection.subscribe(inbox)
        start = time.monotonic()
        connection.send(b"PUB %b %b %d\r\n%b\r\n" % (
            subject.encode(), inbox.encode(), len(data), data
        ))  # fmt: skip
        frame = connection.next_frame(start + timeout_s)
        while frame is not None and (frame.sid != sid or not frame.data):
            frame = connection.next_frame(start + timeout_s)
        connection.unsubscribe(sid)
        return None if frame is None else (understand(frame.data), time.monotonic() - start)

    def pause(
        self, subject: str, seconds: float, reason=Reason.TopicProduceQuotaExceeded,
        timeout_s: float = 30.0,
    ):  # fmt: skip
        """The receipt of a pause, and the seconds it took."""
        self._requests += 1
        return self.ask(
            ThrottleProducer(self._requests, reason, seconds, subject).encode(), timeout_s
        )


class Task(threading.Thread):
    """One task that publishes blocks of rows until it is told to stop."""

    def __init__(self, server, options, subjects, rows=200, stop=None):
        super().__init__(daemon=True)
        self.options = replace(options)
        self.offered: Counter[str] = Counter()
        self.stop = stop or threading.Event()
        self.counts = None
        self.error = None
        self._subjects, self._rows = subjects, rows
        self._client = Client(self.options.connection)
        js = JetStream(self._client)
        self._targets = targets_of(
            lambda subject: Target.parse(js.stream_info(js.stream_of(subject)).config)
        )

    def blocks(self):
        builder = plain_builder(id_prefix="t", targets=self._targets)
        while not self.stop.is_set():
            names = [self._subjects[i % len(self._subjects)] for i in range(self._rows)]
            first = builder.rows
            self.offered.update(names)
            yield builder.build(pa.record_batch({
                "subject": pa.array(names),
                "data": pa.array([str(first + i) for i in range(self._rows)]),
            }))  # fmt: skip
            time.sleep(0.002)

    def run(self):
        client = Client(self.options.connection)
        try:
            self.counts = publisher.publish(
                client, WriteContext(self.options, self._targets, ORIGIN), self.blocks()
            )
        except Exception as error:
            self.error = error
        finally:
            client.close()
            self._client.close()

    def finish(self):
        self.stop.set()
        self.join(60)
        if self.error is not None:
            raise self.error
        return self.counts


def sink(server, **changes) -> SinkOptions:
    return changed(sink_of(connection_of(server.url), ack_timeout_s=2.0), **changes)


def check_order(found, subjects) -> None:
    """Each row once, and in order within its subject."""
    for subject in subjects:
        rows = [int(data) for name, data in found if name == subject]
        assert rows == sorted(rows)
    assert len({data for _, data in found}) == len(found)


@pytest.fixture
def operator(nats_server):
    one = Operator(nats_server)
    yield one
    one.client.close()


def test_b5_b12_nothing_of_a_paused_subject_follows_the_receipt(
    js, nats_server, new_stream, operator
):
    """B5, B12, B21, I6: other subjects go on; after the pause all is there, once, in order."""
    name = new_stream()
    a, b, mark = (f"{name}.{each}" for each in ("a", "b", "mark"))
    task = Task(nats_server, sink(nats_server), [a, b])
    task.start()
    eventually(lambda: js.stream_info(name).messages >= 2_000)
    who = [operator.ask(DISCOVER, subject=each)[0] for each in (CONTROL, f"{CONTROL}.7")]
    receipt, _ = operator.pause(a, 300.0)
    paused = js.publish(mark, b"", [])
    eventually(lambda: js.stream_info(name).last_seq >= paused + 2_000)  # of the other subject
    free = js.publish(mark, b"", [])
    lifted, _ = operator.pause(a, 0.0)
    counts = task.finish()
    found = stored(js, name)
    subjects = [subject for subject, _ in found]
    rows = [each for each in found if each[0] != mark]

    of = {"query": "orders", "host": socket.gethostname()}
    assert who == [Producer(7, True, (a, b), **of)] * 2
    assert receipt == Receipt(1, 7)
    assert lifted == Receipt(2, 7)
    assert set(subjects[:paused]) == {a, b, mark}
    assert Counter(subjects[paused : free - 1]) == {b: free - 1 - paused}
    assert a in subjects[free:]
    assert Counter(subject for subject, _ in rows) == task.offered
    assert counts.acked == counts.rows == len(rows)
    check_order(rows, task.offered)


def test_b12_receipts_do_not_wait_for_spark(js, nats_server, new_stream, operator):
    """B12, A28: a command has its receipt though Spark does not answer."""
    name = new_stream()

    class Slow(Task):
        def blocks(self):
            blocks = super().blocks()
            yield next(blocks)
            self.stop.wait(30)

    task = Slow(nats_server, sink(nats_server), [f"{name}.a"])
    task.start()
    eventually(lambda: js.stream_info(name).messages >= 200)
    receipt, _ = operator.pause(f"{name}.a", 0.1)
    waits = task.is_alive()
    counts = task.finish()

    assert (receipt, waits) == (Receipt(1, 7), True)
    assert counts.acked == counts.rows == 200


def test_b17_a_spread_skips_what_is_paused(js, nats_server, new_stream, operator):
    """B17: new rows go to what is not paused; another attempt stores nothing again."""
    name = new_stream()
    mapping = SubjectMapping.parse(json.dumps({"in": f"{name}.{{{{random(4)}}}}"}))
    options = sink(nats_server, mapping=mapping, ledger=True)
    paused, task = f"{name}.2", TaskName(f"reroute-{name}", 0, 0)
    counts = []

    def blocks(say=None):
        for low in range(0, 4_000, 500):
            if low == 1_000 and say is not None:
                say()
            data = [str(row) for row in range(low, low + 500)]
            yield pa.record_batch({"subject": pa.array(["in"] * 500), "data": pa.array(data)})
            time.sleep(0.02)

    def write():
        counts.append(attempt(options, blocks(pause), task, Ids("t")))

    def pause():
        assert operator.pause(paused, 60.0) is not None

    Ledger(js).ensure()
    writing = threading.Thread(target=write, daemon=True)
    writing.start()
    eventually(lambda: {int(data) for _, data in stored(js, name)} > set(range(2_000, 4_000)))
    found = stored(js, name)
    operator.pause(paused, 0.0)
    writing.join(60)
    late = {subject for subject, data in found if int(data) >= 2_000}
    after = stored(js, name)

    assert late == {f"{name}.{each}" for each in (0, 1, 3)}
    assert counts[0].rows == 4_000
    assert sorted(int(data) for _, data in after) == list(range(4_000))
    again = attempt(options, blocks(), task, Ids("t"))
    assert again.already_stored + again.duplicates == 4_000
    assert len(stored(js, name)) == 4_000


def test_a_subject_at_its_limit_stalls_alone(js, nats_server, new_stream):
    """§12.2: the subject that is full waits, by 10077; the others flow."""
    name = new_stream(
        max_msgs_per_subject=10, discard="new", discard_new_per_subject=True,
    )  # fmt: skip
    full = f"{name}.full"
    rows = [full if i % 100 == 0 else f"{name}.{i % 900}" for i in range(8_000)]
    done = threading.Event()
    counts = []

    def blocks():
        builder = plain_builder(id_prefix="t", targets=targets)
        for low in range(0, len(rows), 1000):
            part = rows[low : low + 1000]
            data = [str(low + i) for i in range(len(part))]
            yield builder.build(
                pa.record_batch({"subject": pa.array(part), "data": pa.array(data)})
            )

    look = Client(connection_of(nats_server.url))
    info = JetStream(look)
    targets = targets_of(lambda subject: Target.parse(info.stream_info(name).config))
    options = sink(nats_server)

    def write():
        client = Client(options.connection)
        counts.append(publisher.publish(client, WriteContext(options, targets), blocks()))
        done.set()
        client.close()

    task = threading.Thread(target=write, daemon=True)
    task.start()
    deadline = time.monotonic() + 60
    while js.stream_info(name).messages < 7_930 and time.monotonic() < deadline:
        time.sleep(0.02)
    reached = js.stream_info(name).messages
    refusal = json.loads(js.client.request(full, b"x").data)["error"]
    found: list[tuple[str, bytes]] = []
    while not done.is_set() and time.monotonic() < deadline:
        found += [each for each in stored_of(js, name, full) if each not in found]
        js.purge(name, full, None)
        time.sleep(0.02)
    task.join(60)
    look.close()

    assert reached == 7_930, "the others had to wait"
    assert "per subject" in refusal["description"]  # as `Outcome.is_push_back` needs it
    assert done.is_set()
    assert counts[0].acked == counts[0].rows == 8_000


def stored_of(js, stream, subject):
    """What is stored on this subject now."""
    return [each for each in stored(js, stream) if each[0] == subject]
