"""Two queries on a consumer of three replicas whose leaders move, and whose servers restart."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from contextlib import suppress

import pytest

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.errors import JetStreamError

from ..conftest import connection_to
from ..kits.reading import Query, hang_up
from ..kits.replicas import create, publish
from ..kits.servers import DevCluster
from ..kits.shared import eventually

logger = logging.getLogger(__name__)

_ACK_WAIT_S = 12.0


def letters(client: Client, stream: str) -> list[int]:
    """The sequences of the messages of which this stream holds dead letters."""
    js = JetStream(client)
    last = js.stream_info(stream).last_seq
    found = [
        message
        for begin in range(1, last + 1, 100)
        for message in js.messages(
            stream, [{"seq": number} for number in range(begin, min(begin + 100, last + 1))]
        )
    ]
    ids = [dict(message.headers)["Nats-Msg-Id"] for message in found if message is not None]
    return [int(each.split("-")[1].removesuffix(".dlq")) for each in ids]


class Reading(threading.Thread):
    """A query that runs on until it is told to end."""

    def __init__(self, query: Query, done: threading.Event) -> None:
        super().__init__(daemon=True)
        self.query = query
        self.error: BaseException | None = None
        self._done = done

    def run(self) -> None:
        try:
            while not self._done.is_set():
                self.query.step()
        except BaseException as error:
            self.error = error
        finally:
            hang_up()


@pytest.mark.slow
@pytest.mark.parametrize("unrest", ["consumer", "both", "restarts", "maxDeliver"])
@pytest.mark.parametrize("retention", ["limits", "workqueue"])
def test_leaders_change_again_and_again(unrest, retention):
    """
    Two queries read a backlog of messages older than the ack wait, while the consumer's leader
    steps down again and again, the stream's as well, or servers restart one after another: each
    message is in a committed batch of one of them at least. Or it is one dead letter, with
    `maxDeliver`.
    """
    seed = time.time_ns() % 10**6
    logger.info("seed %d", seed)
    dice = random.Random(seed)
    count = 60_000 if unrest != "restarts" else 40_000
    with DevCluster(3) as cluster:
        client = Client(connection_to(cluster.servers[0]))
        js = JetStream(client)
        create(
            js,
            {
                "name": "S",
                "subjects": ["s.>"],
                "allow_direct": True,
                "num_replicas": 3,
                "retention": retention,
            },
        )
        options = {"stream": "S", "priorityPolicy": "overflow", "consumer": "jobs",
                   "servers": cluster.urls, "ackWait": f"{_ACK_WAIT_S:.0f}s",
                   "maxRecordsPerTrigger": 300, "requestTimeout": "60s"}  # fmt: skip
        if unrest == "maxDeliver":
            create(js, {"name": "DEAD", "subjects": ["dead"], "num_replicas": 3})
            options |= {"maxDeliver": 1, "deadLetterSubject": "dead"}
        queries = [Query(cluster.servers[0], **options) for _ in range(2)]
        done = threading.Event()
        readings = [Reading(query, done) for query in queries]
        changes = Counter()
        try:
            assert queries[0].claim() is None
            publish(client, [(f"s.{i % 7}", b"m%d" % i) for i in range(count)])
            written = time.monotonic()
            eventually(lambda: time.monotonic() > written + _ACK_WAIT_S, 60)
            for reading in readings:
                reading.start()
            calm = time.monotonic() + 200.0  # a slow machine reads the rest then
            until, turn = calm + 200.0, 0
            while time.monotonic() < until and any(reading.is_alive() for reading in readings):
                read = {s for query in queries for s in query.sequences}
                stored = js.stream_info("DEAD").last_seq if unrest == "maxDeliver" else 0
                if len(read) + stored >= count:  # one that was read may be a dead letter, too
                    read.update(letters(client, "DEAD") if stored else ())
                    if len(read) >= count:
                        break
                time.sleep(dice.uniform(0.05, 0.6))
                if time.monotonic() > calm:
                    continue
                turn += 1
                if unrest == "restarts" and turn % 8 == 0:
                    cluster.servers[turn // 8 % 3].restart()
                    changes["restart"] += 1
                    continue
                is_stream = unrest != "consumer" and dice.random() < 0.3
                what = "STREAM.LEADER.STEPDOWN.S" if is_stream else (
                    "CONSUMER.LEADER.STEPDOWN.S.jobs-0")  # fmt: skip
                with suppress(JetStreamError):  # between two leaders there is none to step down
                    reply = client.requests([(f"{js.prefix}.{what}", b"")])[0]
                    changes[what.split(".")[0]] += b'"success":true' in reply.data
        finally:
            done.set()
            for reading in readings:
                reading.join(70)
            for query in queries:
                query.die()
            dead = letters(client, "DEAD") if unrest == "maxDeliver" else []
            client.close()
        errors = [reading.error for reading in readings if reading.error]
        counts = Counter(dead)
        counts.update(s for query in queries for s in query.sequences)
        twice = [s for s, n in counts.items() if n > 1]
        missing = count - len(counts)
        said = (
            f"seed {seed}, {dict(changes)}, rows {[len(query.rows) for query in queries]},"
            f" {len(dead)} dead letters"
        )
        logger.info("%s, %d twice, %d missing", said, len(twice), missing)
        assert not errors, (said, errors)
        assert not missing, said
        assert changes["CONSUMER"] > 3, said
