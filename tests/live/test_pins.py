"""Pins on a real server: the protocol on the wire, take-overs, and whoever else pulls."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time

import pytest

from pyspark_jetstream.client import wire
from pyspark_jetstream.client.connection import Client, borrow
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.errors import ForeignClientError
from pyspark_jetstream.fetch.consumer import ConsumerRead
from pyspark_jetstream.fetch.durable import consumer_config
from pyspark_jetstream.fetch.owner import Owner
from pyspark_jetstream.fetch.pulling import pinned as pinned_module
from pyspark_jetstream.fetch.pulling.pinned import Pinned
from pyspark_jetstream.readstream.pinned.ownership import Pins
from pyspark_jetstream.values import Secret

from ..kits.options import connection_of
from ..kits.pins import Advisories, Puller, Query, QueryProcess
from ..kits.places import ROOT
from ..kits.servers import DevServer
from ..kits.shared import eventually


@pytest.fixture
def query(nats_server):
    """Makes queries on the shared server."""
    made = []

    def make(**options):
        made.append(Query(nats_server, **options))
        return made[-1]

    yield make
    for each in made:
        each.stop()


@pytest.fixture
def puller(nats_server):
    """Makes clients that pull by hand."""
    made = []

    def make(*names):
        made.append(Puller(nats_server, *names))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def advisories(nats_server):
    """Makes clients that are told of a consumer's pins."""
    made = []

    def make(stream, name="c"):
        made.append(Advisories(nats_server, stream, name))
        return made[-1]

    yield make
    for each in made:
        each.close()


def pinned_consumer(js, stream, name="c", timeout_s=60.0) -> ConsumerRead:
    """A consumer as a query makes it."""
    read = ConsumerRead(
        partition=0, stream=stream, filter=None, start=0, end=10, expected=None,
        include_headers=False, fail_on_data_loss=True, consumer=name, group="spark",
        priority_timeout_s=timeout_s,
    )  # fmt: skip
    js.create_consumer(stream, consumer_config(read))
    return read


def numbers(batches) -> list[int]:
    return [seq for rows in batches for seq in rows.column("sequence").to_pylist()]


def test_the_six_steps_on_the_wire(js, new_stream, publish, puller, advisories):
    """
    ADR-42, `pinned_client`, "this process is followed", as nats-server 2.15 does it, traced on the
    connections of two clients and of one that listens to advisories. What differs from the
    document: a pin is picked when a message can be delivered, not before; and who has an old id is
    told when it pulls while somebody else is pinned, or, of an open pull, when that would be next.
    """
    stream = new_stream()
    pinned_consumer(js, stream)
    told = advisories(stream)
    first, second = puller(stream, "c"), puller(stream, "c")
    first.pull(2)
    eventually(lambda: js.consumer_info(stream, "c").num_waiting == 1)  # so that it is the first
    second.pull(1, idle_heartbeat=10**9)
    quiet = first.nothing()
    before = js.consumer_info(stream, "c").pinned_id
    publish([(f"{stream}.a", b"1")])
    first.next()
    a = first.pin
    pinned = told.next()
    at_first = js.consumer_info(stream, "c").pinned_id
    # An administrator makes the server pick a new one.
    js.unpin(stream, "c", "spark")
    unpinned = told.next()
    free = js.consumer_info(stream, "c").pinned_id
    beat = second.next()
    publish([(f"{stream}.a", b"2")])
    while second.next()[0] == 100:
        pass
    b = second.pin
    again = told.next()
    stored = js.consumer_info(stream, "c").pinned_id
    first.pull(1, id=a)
    first.next()
    second.pull(1, id=b)
    publish([(f"{stream}.a", b"3")])
    second.next()
    first.next()  # of its first pull, which brought one message of two
    first.pull(1)  # "clear the ID and pull with no ID": it waits behind the pinned client
    waits = first.nothing()

    assert quiet and before == ""
    assert a == at_first == pinned["pinned_id"]
    assert unpinned["reason"] == "admin" and free == ""
    assert beat[0] == 100  # 1. heartbeats, and no message
    assert b not in ("", a)  # 2. another client
    assert stored == b  # 3. its id is stored
    assert again["type"].endswith("consumer_group_pinned") and again["pinned_id"] == b  # 5.
    assert second.trace == [
        ("pull", 1, ""),
        ("got", "2", b),  # 4. with the id
        ("pull", 1, b),
        ("got", "3", b),
    ]
    assert first.trace == [
        ("pull", 2, ""),
        ("got", "1", a),
        ("pull", 1, a),
        ("got", "423 Nats-Pin-Id mismatch", ""),  # 6. a pull with another id
        ("got", "423 Nats-Wrong-Pin-Id", ""),  # 6. a pull that waited
        ("pull", 1, ""),
    ]
    assert waits


def test_a_client_that_died_loses_its_pin(js, new_stream, publish, puller, advisories):
    """
    A pinned client whose connection is gone keeps the pin until its timeout; then whoever waits has
    it, and the advisory says why.
    """
    stream = new_stream()
    pinned_consumer(js, stream, timeout_s=1.0)
    told = advisories(stream)
    dead, waiting = puller(stream, "c"), puller(stream, "c")
    dead.pull(1)
    publish([(f"{stream}.a", b"1")])
    dead.next()
    told.next()
    dead.close()
    waiting.pull(1)
    publish([(f"{stream}.a", b"2")])
    got = waiting.next()
    events = [told.next(), told.next()]

    assert got[3] == b"2"
    assert [event["type"].rpartition("_")[2] for event in events] == ["unpinned", "pinned"]
    assert events[0]["reason"] == "timeout"
    assert events[1]["pinned_id"] == waiting.pin


def test_an_attempt_takes_over_from_a_dead_one_at_once(js, nats_server, new_stream, publish):
    """
    The next attempt does not wait for the pin of one whose process died: it has the range exactly,
    long before the timeout of an hour.
    """
    stream = new_stream()
    for _ in range(6):
        publish([(f"{stream}.a", b"x" * 200)] * 5_000)
    read = ConsumerRead(
        partition=0, stream=stream, filter=None, start=0, end=30_000, expected=None,
        include_headers=False, fail_on_data_loss=True, consumer="c", group="spark",
        priority_timeout_s=3600.0,
    )  # fmt: skip
    js.create_consumer(stream, consumer_config(read))
    dying = Client(connection_of(nats_server.url))
    batches = read.batches(dying)
    some = numbers([next(batches)])
    dying.connection.close()
    found = numbers(read.batches(js.client))

    assert 0 < len(some) < 30_000
    assert found == list(range(1, 30_001))


def test_a_short_pin_is_kept_while_the_range_waits(js, new_stream, publish, puller, advisories):
    """
    Whose pulls bring nothing for longer than the timeout keeps the pin, if they end as a reader's
    do, after a third of it, and are renewed.
    """
    stream = new_stream()
    read = pinned_consumer(js, stream, timeout_s=9.0)
    told = advisories(stream)
    publish([(f"{stream}.a", b"x")])
    body = Pinned(js.client, read).pull()
    mine = puller(stream, "c")
    mine.pull(2, expires_s=body["expires"] / 1e9)
    mine.next()
    for _ in range(4):
        while mine.next()[0] not in (408, 409):
            pass
        mine.pull(1, id=mine.pin, expires_s=body["expires"] / 1e9)
    pinned = told.next()
    none = told.connection.next_frame(time.monotonic() + 0.1)

    assert body["expires"] == 3_000_000_000
    assert body["idle_heartbeat"] * 2 <= body["expires"]
    assert pinned["pinned_id"] == mine.pin
    assert none is None, "the pin was lost"
    assert js.consumer_info(stream, "c").pinned_id == mine.pin


# ── in the progress ──────────────────────────────────────────────────────────────────────────


def test_pins_are_in_the_progress(js, new_stream, publish, query, caplog):
    """
    The progress shows of each partition who is pinned, since when and how often that changed; what
    the query's own attempts did is told from what an administrator did, and logged.
    """
    caplog.set_level(logging.INFO, "pyspark_jetstream.readstream.pinned.pinwatch")
    stream = new_stream()
    publish([(f"{stream}.{p}.x", b"x") for p in (0, 1)])
    one = query(stream=stream, consumer="seen", partitions=2,
                partitionSubject=f"{stream}.{{partition}}.>", readMode="consumer")  # fmt: skip
    one.batch()
    first = one.progress_with(lambda p: p.get("pins") == 1)
    pinned = js.consumer_info(stream, "seen-0").pinned_id
    js.unpin(stream, "seen-0", "spark")
    second = one.progress_with(lambda p: p["unpins"]["admin"] == 1)
    other = one.progress_with(lambda p: p.get("pins") == 1, partition=1)
    publish([(f"{stream}.0.x", b"x")])
    one.batch()
    third = one.progress_with(lambda p: p["pins"] == 2)

    assert first["pinned"] == pinned and first["pinnedTs"].startswith("20")
    assert (first["strangers"], first["unpins"]["attempt"]) == (0, 1)
    assert second["pinned"] is None
    assert other["unpins"] == {"attempt": 1, "admin": 0, "timeout": 0, "leader": 0}
    assert third["pinned"] not in (None, pinned)
    assert (third["unpins"]["attempt"], third["unpins"]["admin"]) == (2, 1)
    assert one.sequences == [1, 2, 3]
    assert f"pinned stream={stream} consumer=seen-0 id={pinned}" in caplog.text
    assert f"unpinned stream={stream} consumer=seen-0 id={pinned} reason=UNPIN" in caplog.text


def test_the_consumers_name_the_query(js, new_stream, publish, query, monkeypatch):
    """
    The metadata of the consumers has what the read calls its query (`queryName`) from the first
    batch on; without, what Spark tells its tasks, from the batch after on. A pin outlasts that.
    """
    stream = new_stream()

    def name(consumer):
        return Owner.of(js.consumer_info(stream, consumer).config).name

    publish([(f"{stream}.x", b"x")])
    monkeypatch.setattr(pinned_module, "query_name", lambda: "alerts")
    told = query(stream=stream, consumer="told", queryName="flights", readMode="consumer")
    heard = query(stream=stream, consumer="heard", readMode="consumer")
    told.batch()
    heard.batch()
    first, early = name("told-0"), name("heard-0")
    pinned = js.consumer_info(stream, "heard-0").pinned_id
    publish([(f"{stream}.x", b"x")])
    told.batch()
    eventually(lambda: heard.plan() and name("heard-0"))  # no attempt takes the pin yet

    assert (first, name("told-0")) == ("flights", "flights")
    assert (early, name("heard-0")) == ("", "alerts")
    assert pinned and js.consumer_info(stream, "heard-0").pinned_id == pinned


def test_a_pin_that_ends_between_batches_costs_nothing(js, new_stream, publish, query):
    """
    A query that nobody shares its consumer with goes on exactly although its pin ended between two
    batches.
    """
    stream = new_stream()
    publish([(f"{stream}.x", b"x")] * 5)
    one = query(stream=stream, consumer="alone", readMode="consumer", priorityTimeout="6s")
    one.batch()
    seen = one.progress_with(lambda p: p["unpins"]["timeout"] == 1)
    publish([(f"{stream}.x", b"x")] * 5)
    one.batch()

    assert seen["pinned"] is None
    assert one.sequences == list(range(1, 11))


@pytest.mark.parametrize("announces", [True, False], ids=["announces", "silent"])
def test_a_user_that_may_not_listen(caplog, monkeypatch, announces):
    """
    Without the permission to listen to advisories there is one warning, and the query goes on, also
    where its attempts may not announce their pins; it then calls nobody a stranger.
    """
    config = """
    authorization { users: [
      {user: admin, password: a}
      {user: spark, password: s, permissions: {
        publish: ["$JS.API.>", "MORE"], subscribe: ["_INBOX.>"] }}
    ] }
    """.replace("MORE", "_INBOX.>" if announces else "nothing.else")
    with DevServer(config=config) as server:
        admin = Client(connection_of(server.url, user="admin", password=Secret("a")))
        js = JetStream(admin)
        js.create_stream({"name": "S", "subjects": ["S.>"], "allow_direct": True})
        for _ in range(5):
            js.publish("S.a", b"x", [])
        one = Query(
            server, stream="S", user="spark", password="s", consumer="c", readMode="consumer"
        )
        try:
            one.batch()
            pinned = js.consumer_info("S", "c-0").pinned_id
            js.publish("S.a", b"x", [])
            monkeypatch.setattr("pyspark_jetstream.readstream.pinned.durables._LOOK_EVERY_S", 0.0)
            one.batch()
            report = one.progress()
        finally:
            one.stop()
            admin.close()
    warnings = [r for r in caplog.records if r.name.endswith("pinwatch") and r.levelno >= 30]

    assert one.sequences == [1, 2, 3, 4, 5, 6]
    assert (report["pins"], report["strangers"]) == (0, 0)
    assert report["pinned"] == pinned  # by CONSUMER.INFO, before the second batch
    assert len(warnings) == 1 and "ADVISORY" in warnings[0].getMessage()


@pytest.mark.parametrize("breaks", [False, True], ids=["nonsense", "unforeseen"])
def test_nothing_that_is_said_ends_the_listening(
    js, nats_server, new_stream, publish, query, monkeypatch, breaks
):
    """
    Whatever arrives where attempts announce their pins, the driver goes on answering that it is
    alive: otherwise another query would take its consumers over. That holds for an error that
    nobody has foreseen, too.
    """
    name = new_stream()
    publish([(f"{name}.a", b"x")])
    one = query(stream=name, consumer="c", readMode="consumer")
    one.batch()
    inbox = js.consumer_info(name, "c-0").config["metadata"]["pyspark-jetstream.inbox"]
    if breaks:
        announced, calls = Pins.add_announcement, []

        def once(self, note):
            calls.append(note)
            if len(calls) == 1:
                raise RuntimeError("unforeseen")
            announced(self, note)

        monkeypatch.setattr(Pins, "add_announcement", once)
    for data in (b'{"partition": [], "pinned": 1}', b"[]", b"no JSON", b'{"partition": {}}'):
        js.client.connection.send(wire.pub(f"{inbox}.pins", data))
    js.client.connection.ping(60.0)

    def answers() -> bool:
        return js.client.request(f"{inbox}.owner").status == 0

    deadline = time.monotonic() + 60
    while not answers():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    time.sleep(0.3)
    assert answers()


# ── whoever else pulls ───────────────────────────────────────────────────────────────────────


def test_a_stranger_that_waits_between_batches_is_named(
    js, new_stream, publish, query, puller, monkeypatch
):
    """
    Another client that waits while the pin ends between batches is pinned and takes messages: the
    next batch is an error that names it, the time between the batches, the timeout and the way out.
    """
    stream = new_stream()
    publish([(f"{stream}.x", b"x")] * 5)
    one = query(stream=stream, consumer="hit", readMode="consumer", priorityTimeout="6s",
                requestTimeout="3s")  # fmt: skip
    one.batch()
    other = puller(stream, "hit-0")
    other.pull(10, expires_s=60.0)
    publish([(f"{stream}.x", b"y")])
    took = other.next()
    one.progress_with(lambda p: p["strangers"] == 1)
    with pytest.raises(ForeignClientError) as caught:
        one.plan()

    assert took[3] == b"y"
    assert f"with id '{other.pin}'" in str(caught.value)
    assert "consumer 'hit-0'" in str(caught.value)
    assert "a pin lasts 6s (priorityTimeout)" in str(caught.value)
    assert "s passed since the batch before" in str(caught.value)
    assert "option consumer" in str(caught.value)


def test_a_pull_that_waits_before_every_batch_is_noticed(
    js, new_stream, publish, query, puller, monkeypatch
):
    """
    Another client whose pull waits before each batch, for longer than a pull of an attempt that was
    cut off could, is an error although it was never pinned; before that it is none.
    """
    monkeypatch.setattr("pyspark_jetstream.readstream.pinned.durables._LOOK_EVERY_S", 0.0)
    monkeypatch.setattr("pyspark_jetstream.readstream.pinned.neighbours._MARGIN_S", 1.0)
    stream = new_stream()
    publish([(f"{stream}.x", b"x")] * 5)
    one = query(stream=stream, consumer="wait", readMode="consumer", requestTimeout="5s")
    one.plan()
    # By hand what an attempt does: it is pinned, and says so.
    mine, other = puller(stream, "wait-0"), puller(stream, "wait-0")
    mine.pull(1)
    mine.next()
    inbox = js.consumer_info(stream, "wait-0").config["metadata"]["pyspark-jetstream.inbox"]
    mine.connection.tell(f"{inbox}.pins", json.dumps({"partition": 0, "pinned": mine.pin}).encode())
    other.pull(1, expires_s=60.0)
    began = time.monotonic()
    one.plan()
    with pytest.raises(ForeignClientError, match="1 pulls of another client wait"):
        while time.monotonic() < began + 30:
            one.plan()
            time.sleep(0.1)

    assert time.monotonic() - began > 2.5
    assert one.progress()["strangers"] == 0
    assert other.trace == [("pull", 1, "")]


def test_another_checkpoint_with_the_same_consumer_is_refused(
    js, new_stream, publish, query, monkeypatch
):
    """
    A second query with a checkpoint of its own is refused as long as the first one's driver lives,
    with its name; when that one has ended, it may have the consumer.
    """
    monkeypatch.setattr("pyspark_jetstream.readstream.pinned.neighbours._ALIVE_WITHIN_S", 60.0)
    stream = new_stream()
    publish([(f"{stream}.x", b"x")] * 5)
    one = query(stream=stream, consumer="mine")
    one.batch()
    two = query(stream=stream, consumer="mine")
    with pytest.raises(ForeignClientError, match=r"belongs to query [0-9a-f]{10} \(host .*process"):
        two.batch()
    publish([(f"{stream}.x", b"x")])
    one.batch()
    one.stop()
    three = query(stream=stream, consumer="mine")
    three.batch()

    assert one.sequences == three.sequences == [1, 2, 3, 4, 5, 6]


def test_a_query_whose_consumer_was_taken_over_ends(js, nats_server, new_stream, publish, query):
    """
    A run that cannot answer, and whose consumer another one has taken over, ends before its next
    batch with an error that names the other one: they do not take it from each other for ever.
    """
    stream = new_stream()
    publish([(f"{stream}.x", b"x")] * 5)
    one = QueryProcess(nats_server, stream=stream, consumer="lost")
    try:
        one.batch()
        one.freeze()
        two = query(stream=stream, consumer="lost")
        two.batch()  # asks whether the first one lives, for longer than it waits between two looks
        publish([(f"{stream}.x", b"x")])
        one.thaw()
        with pytest.raises(ForeignClientError, match=f"query {two.at['query']} .*has taken consum"):
            one.batch()
    finally:
        one.kill()

    assert two.batch() == [6]


@pytest.mark.parametrize("how", ["restart", "kill", "twice"])
def test_a_restart_is_no_other_query(js, nats_server, new_stream, publish, query, how):
    """
    The same checkpoint goes on without an alarm: stopped and started, killed and started at once,
    and started while its old process still hangs.
    """
    stream = new_stream()
    publish([(f"{stream}.x", b"x")] * 5)
    start = None
    if how == "kill":
        script = (
            "import json, sys, os, signal; from tests.kits.pins import Query;"
            "from types import SimpleNamespace as N; q = Query(N(url=sys.argv[1]),"
            " stream=sys.argv[2], consumer='again', readMode='consumer'); q.batch();"
            "print(json.dumps(q.at), flush=True); os.kill(os.getpid(), signal.SIGKILL)"
        )
        done = subprocess.run(
            [sys.executable, "-c", script, nats_server.url, stream], capture_output=True, text=True,
            timeout=100, cwd=ROOT,
        )  # fmt: skip
        start = json.loads(done.stdout)
    else:
        one = query(stream=stream, consumer="again", readMode="consumer")
        one.batch()
        start = one.at
        if how == "restart":
            one.stop()
    publish([(f"{stream}.x", b"x")] * 5)
    two = query(stream=stream, consumer="again", readMode="consumer", start=start)
    two.batch()
    publish([(f"{stream}.x", b"x")])
    two.batch()

    assert two.sequences == [6, 7, 8, 9, 10, 11]
    assert two.progress()["strangers"] == 0


def test_attempts_again_are_no_strangers(js, new_stream, publish, query, nats_server):
    """
    Tasks that run again, in other processes' connections and at once, are the query's own.
    """
    stream = new_stream()
    publish([(f"{stream}.x", b"x")] * 50)
    one = query(stream=stream, consumer="often", readMode="consumer")
    end, tasks = one.plan()
    for _ in range(3):
        with borrow(tasks[0].connection) as client:
            client.drop()
        found = numbers(one.reader.read(tasks[0]))
    one.at = end
    seen = one.progress_with(lambda p: p["pins"] == 3 and p["unpins"]["attempt"] == 3)
    time.sleep(2.5)  # a pin that nobody announced would be a stranger's by now

    assert found == list(range(1, 51))
    assert seen["strangers"] == one.progress()["strangers"] == 0
    assert one.progress()["unpins"]["admin"] == 0


def test_a_client_that_keeps_the_pin_is_named_in_the_task(
    js, nats_server, new_stream, publish, puller, monkeypatch
):
    """
    An attempt that gets no message for requestTimeout because another client is pinned ends with an
    error that names its id, not with one about time. (Nothing unpins it here: it stands for one
    that takes the pin back each time.)
    """
    stream = new_stream()
    read = pinned_consumer(js, stream, timeout_s=3600.0)
    other = puller(stream, "c")
    other.pull(1)
    publish([(f"{stream}.a", b"x") for _ in range(10)])
    other.next()
    other.pull(20, id=other.pin)
    for _ in range(9):
        other.next()
    monkeypatch.setattr(
        JetStream, "unpin", lambda js, stream, consumer, _: js.consumer_info(stream, consumer)
    )
    client = Client(connection_of(nats_server.url, request_timeout_s=5.0))
    try:
        with pytest.raises(ForeignClientError) as caught:
            numbers(read.batches(client))
    finally:
        client.close()

    assert f"with id '{other.pin}'" in str(caught.value)
    assert "keeps the pin of consumer 'c'" in str(caught.value)


@pytest.mark.parametrize("how", ["first", "another", "waits", "moved"])
def test_a_pin_that_is_still_ours_is_not_taken_again(
    js, new_stream, publish, query, puller, advisories, monkeypatch, how
):
    """
    The first attempt of a task goes on under the pin of the batch before. It is taken anew by
    another attempt, while somebody's pull waits, and where the consumer stands elsewhere.
    """
    stream = new_stream()
    publish([(f"{stream}.x", b"x")] * 5)
    one = query(stream=stream, consumer="c", readMode="consumer")
    one.batch()
    was = js.consumer_info(stream, "c-0").pinned_id
    eventually(lambda: one.reader.driver._durables._neighbours.pin(0) == was)
    if how == "another":
        monkeypatch.setattr(pinned_module, "is_another_attempt", lambda: True)
    elif how == "waits":
        other = puller(stream, "c-0")
        other.pull()
        eventually(lambda: js.consumer_info(stream, "c-0").num_waiting == 1)
    elif how == "moved":
        js.reset(stream, "c-0", 8)
    told = advisories(stream, "c-0")
    publish([(f"{stream}.x", b"x")] * 3)
    end, tasks = one.plan()
    found = numbers(batch for task in tasks for batch in one.reader.read(task))
    now = js.consumer_info(stream, "c-0").pinned_id
    js.unpin(stream, "c-0", "spark")

    assert found == [6, 7, 8]
    assert (now == was) is (how == "first")
    assert told.next()["type"].endswith("_unpinned")  # the test's own, if it is the first
    assert tasks[0].work.pin == was
