"""Reading what an earlier attempt of a write has stored, from a stream with anything in it."""

import threading

import pyarrow as pa
import pytest

from pyspark_jetstream.fetch.pulling import pulls
from pyspark_jetstream.publish.metrics import Written
from pyspark_jetstream.write.exactlyonce import tail
from pyspark_jetstream.write.exactlyonce.ids import Ids, TaskName
from pyspark_jetstream.write.exactlyonce.ledger import Ledger
from pyspark_jetstream.write.exactlyonce.recovery import Recovery
from pyspark_jetstream.write.streams import FoundStream

from ..kits.clients import serving
from ..kits.options import connection_of, sink_of
from ..kits.shared import eventually
from ..kits.writing import attempt
from .test_strangers import hpub
from .test_throttle import Operator
from .test_writes import KilledError


@pytest.mark.parametrize("pull", [20_000, 2])
def test_what_others_stored_stops_nobody(monkeypatch, pull):
    """Every row is found beside odd headers and huge messages, and the server lives."""
    monkeypatch.setattr(pulls, "_PULL_MESSAGES", pull)
    with serving("max_payload: 16MB", request_timeout_s=60.0) as (_, js):
        empty = js.stream_info("S")
        large = bytes(9 << 20)
        for row, data in enumerate([b"a", b"b", large, large, b"c", b"d"]):
            js.publish("S.a", data, [("Nats-Msg-Id", f"t-0-{row}")])
            hpub(js, [(b"S.b", b"A", b"body")])
        found = Recovery(js.client, TaskName("w", 0, 0), [FoundStream.of(empty)], "t")
        found.refresh()
        stored = found._found["S"].between(0, 9)

        assert stored["row"].to_pylist() == list(range(6))
        assert stored["size"].to_pylist() == [1, 1, 9 << 20, 9 << 20, 1, 1]
        assert js.stream_info("S").messages == 12


SIZE = 50
TASKS = 20


def block(name, task):
    """The rows of a task."""
    return pa.record_batch({
        "subject": pa.array([f"{name}.{i % 3}" for i in range(SIZE)]),
        "data": pa.array([f"{task}-{i}" for i in range(SIZE)]),
    })  # fmt: skip


@pytest.fixture
def batch(nats_server, js, new_stream):
    """A batch of which all tasks were killed amid their rows; others have written as well."""
    one = Batch(nats_server, js, new_stream())
    for task in range(TASKS):
        with pytest.raises(KilledError):
            one.write(task, one.killed(task))
        js.publish(f"{one.name}.others", b"x", [("Nats-Msg-Id", f"others-{task}")])
    return one


class Batch:
    """A batch of several tasks into one stream, whose ids that has forgotten."""

    def __init__(self, server, js, name):
        self.js, self.name = js, name
        self.options = sink_of(connection_of(server.url), ledger=True)
        Ledger(js).ensure()

    def killed(self, task):
        """Half of the rows of a task; when they are stored it is killed."""
        before = self.js.stream_info(self.name).last_seq
        yield block(self.name, task).slice(0, SIZE // 2)
        eventually(lambda: self.js.stream_info(self.name).last_seq == before + SIZE // 2)
        raise KilledError

    def write(self, task, blocks):
        name = TaskName(f"w-{self.name}", 0, task)
        return attempt(self.options, blocks, name, Ids(self.name))


def test_the_tasks_of_a_process_read_the_tail_once(batch, monkeypatch):
    """Each message is read by the first task that needs it; the later ones read what came since."""
    read: list[int] = []
    real = tail.stored_messages

    def counting(*arguments):
        for messages in real(*arguments):
            read.extend(messages["sequence"].to_pylist())
            yield messages

    monkeypatch.setattr(tail, "stored_messages", counting)
    before = batch.js.stream_info(batch.name).last_seq
    written = [batch.write(task, iter([block(batch.name, task)])) for task in range(TASKS)]
    after = batch.js.stream_info(batch.name).last_seq
    one = tail.tail_of(f"w-{batch.name}", 0, batch.name)

    assert [(each.already_stored, each.acked) for each in written] == [(SIZE // 2,) * 2] * TASKS
    assert after - before == TASKS * SIZE // 2
    assert sorted(read) == sorted(set(read)) and max(read) <= after
    assert sum(map(len, one._spans[batch.name].rows)) == len(read) - TASKS
    assert one._spans[batch.name].others is None


def test_an_operator_is_answered_while_the_tail_is_read(batch, nats_server, monkeypatch):
    """The read does not end before the operator has a receipt."""
    answered = threading.Event()
    real = tail.Tail.refresh

    def slow(*arguments):
        assert answered.wait(60)
        real(*arguments)

    monkeypatch.setattr(tail.Tail, "refresh", slow)
    found: list[Written] = []
    task = threading.Thread(
        target=lambda: found.append(batch.write(0, iter([block(batch.name, 0)])))
    )
    task.start()
    operator = Operator(nats_server)
    try:
        receipt = None
        while receipt is None:  # the task may not listen yet
            receipt = operator.pause(f"{batch.name}.none", 0.001, timeout_s=5.0)
    finally:
        answered.set()
        operator.client.close()
        task.join(60)

    assert found[0].already_stored == SIZE // 2
