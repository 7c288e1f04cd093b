"""A server that has no room: what waits, what overtakes, what goes elsewhere."""

import os
import random
import threading
from collections import Counter, defaultdict

import pyarrow as pa
import pytest

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.outbox.priority import Priority
from pyspark_jetstream.outbox.targets import Target
from pyspark_jetstream.publish import publisher
from pyspark_jetstream.publish.context import WriteContext
from pyspark_jetstream.publish.metrics import Written
from pyspark_jetstream.publish.telemetry import Origin

from ..kits.clients import serving
from ..kits.encoder import plain_builder
from ..kits.options import (
    FIXED,
    changed,
    connection_of,
    priorities_of,
    rules_of,
    sink_of,
    targets_of,
)
from .test_publisher import stored

SEED = int(os.environ.get("SEED", "0"))
NARROW = "jetstream { max_buffered_msgs: 30 }"
LABELS = ["critical", "normal", "non-critical"]
BY_SUBJECT = tuple((f"S.{label}.*", Priority.of(label)) for label in LABELS)


@pytest.fixture
def narrow(request):
    """A server that refuses what it has no room for at once, with 429; or another configuration."""
    streams = dict.fromkeys("SD", {"storage": "file"})
    with serving(getattr(request, "param", NARROW), streams, request_timeout_s=60.0) as found:
        yield found


def rows(rng, count):
    """Subjects of so many rows: one in 25 critical, ten normal, the others non-critical."""
    labels = rng.choices(LABELS, [1, 10, 14], k=count)
    return [f"S.{label}.{rng.randrange(5)}" for label in labels]


def write(server, subjects, block=500, **changes):
    """The counts of writing the rows; row i has i as data."""
    options = sink_of(connection_of(server.url), **FIXED, max_in_flight=200)
    options = changed(options, priorities=priorities_of(subjects=BY_SUBJECT), **changes)
    client, look = Client(options.connection), Client(options.connection)
    js = JetStream(look)
    targets = targets_of(lambda subject: Target.parse(js.stream_info(subject[0]).config))
    builder = plain_builder(id_prefix="o", targets=targets, priorities=options.priorities)

    def blocks():
        for low in range(0, len(subjects), block):
            part = subjects[low : low + block]
            data = [str(row) for row in range(low, low + len(part))]
            yield builder.build(
                pa.record_batch({"subject": pa.array(part), "data": pa.array(data)})
            )

    try:
        return publisher.publish(
            client, WriteContext(options, targets, Origin(1, "query", 3)), blocks()
        )
    finally:
        client.close()
        look.close()


def test_i3_by_default_nothing_is_shed(narrow):
    """overload.md §12.1, I3: real 429s; every row is stored once, whatever its priority."""
    server, js = narrow
    subjects = rows(random.Random(SEED), 1_000)
    counts = write(server, subjects)
    found = stored(js, "S")

    assert (counts.acked, counts.dead_letters, counts.dropped) == (1_000, 0, 0)
    assert Counter(subject for subject, _ in found) == Counter(subjects)
    assert sorted(int(data) for _, data in found) == list(range(1_000))


def test_strict_order_survives_refusals(narrow):
    """§7: with publishOrder=strict a subject's rows are in order though some are refused."""
    server, js = narrow
    subjects = rows(random.Random(SEED), 1_000)
    counts = write(server, subjects, strict_order=True)
    numbers = defaultdict(list)
    for subject, data in stored(js, "S"):
        numbers[subject].append(int(data))

    assert counts.acked == sum(map(len, numbers.values())) == 1_000
    assert all(each == sorted(each) for each in numbers.values())


def test_dead_letters_and_the_stream_are_the_input(narrow):
    """§12.8, I1, I2, I4: once each, and no critical or normal row is a dead letter."""
    server, js = narrow
    subjects = rows(random.Random(SEED), 8_000)
    counts = write(
        server,
        subjects,
        dead_letter_subject="D.{subject}",
        max_in_flight=1_000,  # in a burst of so many some find no room, however slow we are
        rules=rules_of(queue_size=100, sheddable=frozenset({Priority.NON_CRITICAL})),
    )
    found, dead = stored(js, "S"), stored(js, "D")

    assert counts.dead_letters == len(dead) > 0
    assert counts.acked == len(found)
    assert {subject.split(".")[2] for subject, _ in dead} == {"non-critical"}
    assert all(subject.startswith("D.S.") for subject, _ in dead)
    assert sorted(int(data) for _, data in found + dead) == list(range(8_000))


@pytest.mark.parametrize("narrow", [""], indirect=True, ids=["with room"])
def test_critical_rows_overtake(narrow):
    """§12.8: 99 of 100 critical rows are stored before a fifth of the normal ones."""
    server, js = narrow
    write(server, rows(random.Random(SEED), 4_000), block=4_000)
    places = defaultdict(list)
    for place, (subject, _) in enumerate(stored(js, "S")):
        places[subject.split(".")[1]].append(place)
    last = {label: each[int(0.99 * len(each))] for label, each in places.items()}

    assert sum(map(len, places.values())) == 4_000
    assert last["critical"] * 5 < last["normal"] < last["non-critical"]


def test_sixteen_writers_at_once(narrow):
    """§12.7: their limits find room for all; every row is stored once."""
    server, js = narrow
    found: list[Written] = []

    def task(number):
        options = sink_of(connection_of(server.url))
        client = Client(options.connection)
        builder = plain_builder(id_prefix=f"w{number}")
        batch = pa.record_batch(
            {"subject": pa.array([f"S.w{number}"] * 500), "data": pa.array(["x"] * 500)}
        )
        found.append(publisher.publish(client, WriteContext(options), [builder.build(batch)]))
        client.close()

    tasks = [threading.Thread(target=task, args=(number,)) for number in range(16)]
    for each in tasks:
        each.start()
    for each in tasks:
        each.join(120)

    assert [each.acked for each in found] == [500] * 16
    assert js.stream_info("S").messages == 8_000
