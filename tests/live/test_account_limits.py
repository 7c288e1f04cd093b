"""
An account, or a server, that has no room left: what is shed, and what the error says.
"""

import pyarrow as pa
import pytest

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.errors import (
    ProducerThrottledError,
    PublishTimeoutError,
)
from pyspark_jetstream.outbox import admission
from pyspark_jetstream.outbox.priority import Priority
from pyspark_jetstream.write.exactlyonce.ids import Ids
from pyspark_jetstream.write.exactlyonce.ledger import BUCKET
from pyspark_jetstream.write.exactlyonce.records import TaskName
from pyspark_jetstream.write.task import write_task

from ..kits.options import connection_of, priorities_of, rules_of, sink_of
from ..kits.servers import DevServer
from .test_publisher import stored

BY_SUBJECT = (("*.critical.>", Priority.CRITICAL), ("*.low.>", Priority.NON_CRITICAL))
ROWS = 400
BYTES = 1000
"""Of a row's payload; of 400 of them an account for 200 KB takes less than half."""

ACCOUNT = """
accounts {
  A { jetstream: { max_file: 200000, max_mem: 64000000 }, users: [{user: a, password: a}] }
  SYS { users: [{user: s, password: s}] }
}
system_account: SYS
no_auth_user: a
"""
SERVER = "jetstream { max_file_store: 200000, max_memory_store: 64000000 }"


@pytest.fixture(scope="module", params=[ACCOUNT, SERVER], ids=["account", "server"])
def full(request):
    """A server on which files have little room, and memory has enough."""
    with DevServer(request.param) as server:
        yield server


@pytest.fixture
def js(full):
    """Streams are gone when a test ends, and the room that they took is there again."""
    client = Client(connection_of(full.url))
    js = JetStream(client)
    yield js
    for name in js.stream_names():
        js.call(f"STREAM.DELETE.{name}")
    client.close()


def streams(js, dead="memory", **config):
    """A target on disk, and a stream for dead letters."""
    allowed = {"allow_batched": True, "allow_atomic": True, "allow_direct": True}
    js.create_stream({"name": "T", "subjects": ["T.>"], **allowed, **config})
    js.create_stream({"name": "D", "subjects": ["D.>"], "storage": dead, "allow_direct": True})
    bucket = {"name": f"KV_{BUCKET}", "subjects": [f"$KV.{BUCKET}.>"], "storage": "memory"}
    js.create_stream(
        bucket | {"max_msgs_per_subject": 1, "allow_direct": True, "allow_rollup_hdrs": True}
    )


def batch_of(rows):
    data = [str(i).rjust(BYTES, "-") for i in range(len(rows))]
    return pa.record_batch({"subject": pa.array(rows), "data": pa.array(data)})


def written(server, rows, **options):
    """What a task has written of these rows."""
    options = sink_of(
        connection_of(server.url),
        priorities=priorities_of(subjects=BY_SUBJECT),
        rules=rules_of(queue_size=20, sheddable=frozenset({Priority.NON_CRITICAL})),
        **{"publish_timeout_s": 16.0, "ack_timeout_s": 5.0} | options,
    )
    client = Client(options.connection)
    try:
        return write_task(client, options, [batch_of(rows)], TaskName("w", 0, 0), Ids("w"))
    finally:
        client.close()


@pytest.fixture
def shed_soon(monkeypatch):
    """What finds no room is shed after less of its time."""
    monkeypatch.setattr(admission, "_PATIENCE", 0.1)


CRITICAL = [f"T.{'critical' if i < 50 else 'low'}.{i % 7}" for i in range(ROWS)]


@pytest.mark.usefixtures("shed_soon")
def test_a13_no_room_leaves_no_row_behind(js, full):
    """A13, I1, I2: each row is in one place, or the attempt fails and the next one knows."""
    streams(js)
    named = {"dead_letter_subject": "D.{subject}", "ledger": True}
    try:
        found = written(full, CRITICAL, **named)
    except (PublishTimeoutError, ProducerThrottledError) as error:
        assert error.err_code in (10002, 10023)
        assert "has used up its storage: raise its limits" in str(error)
        found = written(full, CRITICAL, **named)

    assert found.adds_up
    there, letters = stored(js, "T"), stored(js, "D")
    assert 100 < len(there) < 250
    assert found.dead_letters == ROWS - len(there)
    assert sorted(int(data.strip(b"-")) for _, data in there + letters) == list(range(ROWS))
    assert {subject.split(".")[2] for subject, _ in letters} == {"low"}
