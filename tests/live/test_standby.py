"""Hot standby on a real server: two queries as Spark drives them, one of which reads."""

from __future__ import annotations

import json
import threading
import time
from contextlib import ExitStack, closing

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.client.keyvalue import Bucket
from pyspark_jetstream.client.options import parse_connection
from pyspark_jetstream.errors import (
    DataLossError,
    OffsetError,
    OptionError,
    QueryFencedError,
)
from pyspark_jetstream.fetch.layout import Layout
from pyspark_jetstream.fetch.owner import Owner
from pyspark_jetstream.fetch.survey import Survey
from pyspark_jetstream.readstream.lease import BUCKET, Lease
from pyspark_jetstream.readstream.offsets import Offset
from pyspark_jetstream.readstream.standby import LeaseRecord
from pyspark_jetstream.tasks.rows import WarmUp

from ..conftest import connection_to
from ..kits.options import BELOW
from ..kits.pins import Query, QueryProcess
from ..kits.shared import api, eventually
from ..kits.stores import Store
from ..kits.tenants import tenants

__all__ = ["tenants"]

LEASE = {"standby": "true", "consumer": "hot", "priorityTimeout": "6s", "directBelow": "0"}


@pytest.fixture
def query(nats_server):
    """Makes queries on the shared server."""
    made = []

    def make(**options):
        made.append(Query(nats_server, **LEASE | options))
        return made[-1]

    yield make
    for each in made:
        each.stop()


@pytest.fixture
def apart(nats_server):
    """Makes queries in processes of their own."""
    made = []

    def make(**options):
        made.append(QueryProcess(nats_server, **LEASE | options))
        return made[-1]

    yield make
    for each in made:
        each.kill()


def recorded(js, stream, consumer="hot") -> dict:
    """What the queries share."""
    (record,) = js.last_messages(f"KV_{BUCKET}", [f"$KV.{BUCKET}.{stream}.{consumer}"])
    return json.loads(record.data)


def until_it_reads(query, timeout_s=60.0) -> list[int]:
    """Batches until one has rows; these."""
    deadline = time.monotonic() + timeout_s
    while not (found := query.batch()):
        assert time.monotonic() < deadline, query.reader.reportLatestOffset()
    return found


def ended(query, is_killed=False):
    """The query, which Spark has ended after its last batch; killed, it gives nothing back."""
    query.commit()
    query.kill() if is_killed else query.stop()
    return query


def begun(stream, publish, query, is_killed=False):
    """A query with standby that has read the stream's first five messages, and has ended."""
    first = query(stream=stream)
    first.batch()
    publish([(f"{stream}.x", b"x")] * 5)
    assert until_it_reads(first) == [1, 2, 3, 4, 5]
    return ended(first, is_killed)


def in_turn(stream, publish, query):
    """Likewise, and one that has taken over, has read the next five, and has ended."""
    first, second = begun(stream, publish, query), query(stream=stream)
    publish([(f"{stream}.x", b"x")] * 5)
    while 10 not in second.sequences:
        until_it_reads(second)
    return first, ended(second)


@pytest.mark.parametrize("retention", ["limits", "interest", "workqueue", "direct"])
def test_the_second_goes_on_where_the_first_committed(
    js, new_stream, publish, query, apart, retention
):
    """
    While the first query reads, the second has no rows and says who reads; when the first is dead,
    it reads from what the first had committed on: nothing is lost, and only the batch that was not
    known to be committed is there twice.
    """
    mode = {"directBelow": "999999999"} if retention == "direct" else {}
    stream = new_stream(retention="limits" if mode else retention)
    first, second = apart(stream=stream, **mode), query(stream=stream, **mode)
    first.batch()  # makes the consumer
    publish([(f"{stream}.x", b"%d" % i) for i in range(1, 31)])
    until_it_reads(first)
    waiting = [second.batch(), second.batch()]
    publish([(f"{stream}.x", b"x") for _ in range(20)])
    first.batch()
    first.commit()
    shown = json.loads(json.dumps(second.reader.reportLatestOffset()))["standby"]
    publish([(f"{stream}.x", b"x") for _ in range(10)])
    first.batch()  # 51 to 60 are committed, but nobody has noted that
    first.kill()
    took = until_it_reads(second)
    publish([(f"{stream}.x", b"x") for _ in range(5)])
    rest = until_it_reads(second)

    assert first.sequences == list(range(1, 61))
    assert waiting == [[], []]
    assert shown["active"] is False
    assert shown["query"] == first.at["query"] and shown["host"] and shown["pid"]
    assert took == list(range(51, 61))
    assert second.at["query"] != first.at["query"]
    assert rest == list(range(61, 66))
    assert second.reader.reportLatestOffset()["standby"] == {"active": True}


@pytest.mark.parametrize("given", ["pattern", "list"])
def test_take_overs_of_several_streams(tenants, apart, given):
    """
    Three queries take each other's place, and the first one its own again, while streams join,
    leave and are made anew: each row of what the dead one had noted comes once, and a stream that
    came while nobody read is read from its first message, whatever startingOffsets says of those
    that were there.
    """
    names = ",".join(map(tenants.name, "abcdef"))
    streams = {"streamPattern": f"{tenants.prefix}-*"} if given == "pattern" else {"stream": names}
    streams |= {"directBelow": "999999999", "failOnDataLoss": "false", "consumer": tenants.prefix}

    def killed(of, *fills: str):
        """Reads, notes that, and dies; then messages come."""
        until_it_reads(of)
        while of.batch():
            pass
        rows, at = of.places(), of.at
        of.kill()
        tenants.fill(*fills, count=2)
        return rows, at

    tenants.make("a", "b")
    first = apart(**streams)
    first.batch()
    tenants.fill("a", "b")
    second = apart(**streams)
    assert second.batch() == []
    tenants.make("c")
    tenants.fill("c", count=1)
    rows, at = killed(first, "a", "c")
    tenants.remove("b")
    tenants.make("d")
    tenants.fill("d")
    more, _ = killed(second, "a", "c", "d")
    rows += more
    tenants.make("b", "e")
    tenants.fill("b", "e", count=4)
    third = apart(**streams, startingOffsets="latest")
    more, _ = killed(third, "a", "b", "e")
    rows += more
    tenants.make("f")
    tenants.fill("f")
    again = apart(start=at, **streams)
    until_it_reads(again)
    while again.batch():
        pass
    rows += again.places()

    counts = {"a": 9, "b": 6, "c": 5, "d": 5, "e": 6, "f": 3}
    every = [(tenants.name(name), s + 1) for name, n in counts.items() for s in range(n)]
    every += [(tenants.name("b"), s) for s in (1, 2, 3)]  # of the first stream of that name
    assert sorted(rows) == sorted(every)


def test_other_streams_than_the_query_that_reads(tenants, query):
    """
    A query with a stream less than the one that reads does not take its place: the error names it.
    """
    tenants.make("a", "b")
    tenants.fill("a", "b")
    own = {"directBelow": "999999999", "failOnDataLoss": "false", "consumer": tenants.prefix}
    first = query(stream=f"{tenants.name('a')},{tenants.name('b')}", **own)
    first.batch()
    first.batch()
    first.stop()
    other = query(stream=f"{tenants.name('a')},{tenants.name('c')}", **own)
    with pytest.raises(OffsetError, match=f"active query has stream '{tenants.name('b')}', too"):
        until_it_reads(other)


def test_more_streams_than_a_lease_has_room_for(nats_server):
    """
    A lease that would be larger than a message may be is an error that says so, before anything is
    read.
    """
    names = [f"tenant-{number}" for number in range(20_000)]
    everywhere = (0,) * len(names)
    offset = Offset(
        everywhere, everywhere, dict.fromkeys(names, "t" * 30), "c", layout=Layout.of_streams(names)
    )
    owner = Owner("q", "h", 1, True)
    connection = parse_connection({"servers": nats_server.url})
    with closing(Lease(connection, "=", owner, "many", 6.0)) as lease:
        assert lease.wait(60)
        with pytest.raises(OptionError, match="the server's max_payload is 1048576"):
            lease.note(offset)


def test_a_lease_has_room_for_its_headers_and_for_who_takes_it(nats_server):
    """
    A lease that with its headers is larger than a message may be is such an error, too, and so is
    one that a query with a longer name than the last reader's takes over.
    """
    connection = parse_connection({"servers": nats_server.url})
    layout = Layout.of_streams(["s"])

    def record(owner: Owner, room: int) -> LeaseRecord:
        """Of a reader that has ended; it leaves so much room in a message."""
        empty = LeaseRecord(owner, 6.0, 1, 1, Offset((0,), (0,), {"s": ""}, "c", layout=layout))
        size = (1 << 20) - room - len(empty.to_bytes())
        offset = Offset((0,), (0,), {"s": "t" * size}, "c", layout=layout)
        return LeaseRecord(owner, 6.0, 1, 1, offset, released=True)

    reads, waits = (Owner("q", host, 1, True) for host in ("h", "h" * 200))
    with closing(Lease(connection, "=", reads, "full", 6.0)) as lease:
        assert lease.wait(60)
        with pytest.raises(OptionError, match="the server's max_payload is 1048576"):
            lease.note(record(reads, 20).offset)
    with closing(Client(connection)) as client:
        bucket = Bucket(JetStream(client), BUCKET, "")
        assert bucket.replace("=.long", record(reads, 150).to_bytes(), 0)
    with pytest.raises(OptionError, match="the server's max_payload is 1048576"):
        with closing(Lease(connection, "=", waits, "long", 6.0)) as lease:
            deadline = time.monotonic() + 60
            while not lease.wait(1.0):
                assert time.monotonic() < deadline


def test_one_that_waits_has_its_workers_started(js, new_stream, publish, query):
    """
    A query that waits has one batch without rows in each run, with a task for each partition that
    connects to the server and takes nothing; run again, also once the query reads, it has the same
    tasks. One that ends at what is there, and one without a standby, have none.
    """
    stream = new_stream()
    publish([(f"{stream}.0.x", b"x"), (f"{stream}.1.x", b"x")])
    two = {"stream": stream, "partitions": 2, "partitionSubject": f"{stream}.{{partition}}.>"}
    first, second = query(**two), query(**two)
    first.batch()
    ends, tasks = [], []
    for _ in range(3):  # the runs of the second query
        start = second.at
        end, begun = second.plan()
        ends.append((start, end))
        tasks.append([task.work for task in begun])
        read = [batch for task in begun for batch in second.reader.read(task)]
        assert read == []
        assert second.reader.latestOffset(end, ReadAllAvailable()) == end  # one a run
        second.stop()
        second = query(**two)
        second.at = end
    second.reader.prepareForTriggerAvailableNow()
    stays, none = second.plan()
    first.stop()
    again = query(**two)
    replayed = [[task.work for task in again.reader.partitions(*each)] for each in ends]
    alone = query(**two, standby="false", consumer="alone", startingOffsets="latest")
    _, without = alone.plan()

    assert tasks == replayed == [[WarmUp(), WarmUp()]] * 3
    assert [end["sequences"] for _, end in ends] == [[0, 0]] * 3
    assert (stays, none) == (second.at, [])
    assert without == []


def test_a_batch_after_a_take_over_has_its_beginning_in_its_end(
    js, new_stream, publish, query, apart
):
    """
    Planned again from the two offsets that Spark has logged, by another process, the first batch of
    a query that took over has the same rows; the batches after it have nothing to note.
    """
    stream = new_stream()
    publish([(f"{stream}.x", b"x") for _ in range(10)])
    first, second = apart(stream=stream), apart(stream=stream)
    first.batch()
    second.batch()
    publish([(f"{stream}.x", b"x") for _ in range(10)])
    first.batch()
    first.kill()
    start = second.at
    took = until_it_reads(second)
    end = second.at
    publish([(f"{stream}.x", b"x")])
    until_it_reads(second)
    second.kill()
    again = query(stream=stream)
    again.at = start
    tasks = again.reader.partitions(start, end)
    replayed = [
        seq for task in tasks for b in again.reader.read(task)
        for seq in b.column("sequence").to_pylist()
    ]  # fmt: skip

    assert again.reader.partitions(end, end) == []
    assert end["resumed"] == [10] and start["sequences"] == [0]
    assert took == replayed == list(range(11, 21))
    assert "resumed" not in second.at


def test_one_that_was_frozen_ends(js, new_stream, publish, query, apart):
    """
    A query that stood still for longer than its lease and goes on finds, before it plans another
    batch, that another one took its place, and ends with its name; started again it waits, and
    later goes on where the other one was.
    """
    stream = new_stream()
    publish([(f"{stream}.x", b"x") for _ in range(10)])
    first, second = apart(stream=stream), query(stream=stream)
    first.batch()
    second.batch()
    first.batch()  # notes what the one before committed
    first.freeze()
    publish([(f"{stream}.x", b"x") for _ in range(10)])
    until_it_reads(second)
    first.thaw()
    with pytest.raises(QueryFencedError, match=f"query {second.at['query']} .* took the place of"):
        first.batch()
    again = query(stream=stream)
    again.at = first.at
    waits = again.batch()
    publish([(f"{stream}.x", b"x") for _ in range(10)])
    second.batch()
    publish([(f"{stream}.x", b"x") for _ in range(10)])
    second.stop()  # gives the lease back
    found = until_it_reads(again)

    assert second.sequences == list(range(11, 31))
    assert waits == []
    assert found == list(range(21, 41))


def test_an_unfinished_batch_waits_for_its_turn(js, new_stream, publish, query, apart):
    """
    A batch that stands in the log of a query that died is run when it is that query's turn again:
    until then planning it waits, and takes nothing from the query that reads. As that one has
    committed all of its rows, it has none then, and the query goes on where the other one was.
    """
    stream = new_stream()
    publish([(f"{stream}.x", b"x") for _ in range(10)])
    first, second = apart(stream=stream), query(stream=stream)
    first.batch()
    second.batch()
    start = first.at
    publish([(f"{stream}.x", b"x") for _ in range(10)])
    end, _ = first.plan()
    first.kill()
    until_it_reads(second)
    again = query(stream=stream)
    planned: list = []
    thread = threading.Thread(target=lambda: planned.extend(again.reader.partitions(start, end)))
    thread.start()
    publish([(f"{stream}.x", b"x") for _ in range(5)])
    second.batch()
    early = list(planned)
    second.stop()
    thread.join(120)

    assert not thread.is_alive()
    assert early == []
    assert [t.work for t in planned] == [WarmUp()]
    assert second.sequences == [*range(11, 21), *range(21, 26)]
    again.at = end
    assert again.batch() == list(range(21, 26))  # the batch whose commit nobody has noted


@pytest.mark.parametrize("taken", ["all", "all of one", "a part", "taken back", "another stream"])
def test_what_is_left_of_an_unfinished_batch(js, new_stream, publish, query, apart, taken):
    """
    An unfinished batch that another query has committed whole has the tasks that it had, without
    rows. Else it has all of its rows: sinks know rows by their places in the batch. So it has where
    the record is of the query itself, whose checkpoint was taken back, or of an older stream.
    """
    stream = new_stream()
    two = {"stream": stream, "partitions": 2, "partitionSubject": f"{stream}.{{partition}}.>"}
    two["maxRecordsPerTrigger"] = 4

    def fill(*partitions):
        publish([(f"{stream}.{number}.x", b"x") for number in partitions])

    fill(0, 1)
    second = query(**two)
    if taken == "another stream":
        second.batch()
        fill(*[0, 1] * 5)
        while second.batch():
            pass
        second.stop()
        api(js, f"STREAM.DELETE.{stream}")
        new_stream(stream)
        fill(0, 1)
    first = apart(**two, standby=str(taken != "another stream").lower())
    first.batch()
    start = first.at
    fill(*([0] * 4 if taken == "all of one" else [0, 1] * 4))
    end, tasks = first.plan()
    spans = [(task.work.start, task.work.end) for task in tasks]
    if taken == "taken back":
        fill(0, 1)
        first.batch()
        first.batch()
    first.kill()
    if taken in ("all", "all of one", "a part"):
        second.batch()
        limit = ReadMaxRows(4) if taken == "a part" else ReadAllAvailable()
        deadline = time.monotonic() + 60
        while (read := second.reader.latestOffset(second.at, limit)) == second.at:
            assert time.monotonic() < deadline
        assert (read["sequences"] == end["sequences"]) == (taken != "a part")
        second.reader.latestOffset(read, limit)  # notes that this is committed
        second.stop()
    again = query(**two)
    replayed = [task.work for task in again.reader.partitions(start, end)]

    assert len(spans) == (1 if taken == "all of one" else 2)
    if taken in ("all", "all of one"):
        assert replayed == [WarmUp()] * len(spans)
    else:
        assert [(work.start, work.end) for work in replayed] == spans


def test_a_restart_of_the_same_query_does_not_wait(js, new_stream, publish, query, apart):
    """
    A query that is killed and started again over its checkpoint reads on at once, although another
    one waits.
    """
    stream = new_stream()
    publish([(f"{stream}.x", b"x") for _ in range(10)])
    first, second = apart(stream=stream, priorityTimeout="1h"), query(stream=stream)
    first.batch()
    second.batch()
    first.kill()
    again = query(stream=stream, priorityTimeout="1h")
    again.at = first.at
    publish([(f"{stream}.x", b"x") for _ in range(10)])
    found = again.batch()

    assert found == list(range(11, 21))
    assert second.batch() == []


def test_one_that_ends_in_good_order_is_not_waited_for(js, new_stream, publish, query):
    """
    A query that is stopped gives the record back: the other one reads on long before the hour that
    it would wait for a silent one, and exactly behind what was noted.
    """
    stream = new_stream()
    publish([(f"{stream}.x", b"x") for _ in range(10)])
    first, second = (query(stream=stream, priorityTimeout="1h") for _ in range(2))
    first.batch()
    second.batch()
    first.batch()
    publish([(f"{stream}.x", b"x") for _ in range(10)])
    first.stop()
    found = until_it_reads(second)

    assert found == list(range(11, 21))


def test_what_came_after_the_last_look_may_be_read(js, new_stream, publish, query, monkeypatch):
    """
    What the other query read, noted and gave back since the one that takes over looked at the
    stream does not pass for messages that the stream has lost.
    """
    stream = new_stream()
    publish([(f"{stream}.x", b"x") for _ in range(10)])
    first, second = (query(stream=stream, priorityTimeout="1h") for _ in range(2))
    first.batch()
    second.batch()
    first.batch()
    look, looks = Survey.look, []

    def looked(survey, *asked):
        found = look(survey, *asked)
        looks.append(1)
        if len(looks) == 1:  # the second's, before it asks for the lease
            publish([(f"{stream}.x", b"x") for _ in range(5)])
            assert until_it_reads(first) == list(range(11, 16))
            first.batch()
            first.stop()
            reads = "pyspark-jetstream.query"
            eventually(lambda: recorded(js, stream)["owner"][reads] == second.at["query"])
        return found

    monkeypatch.setattr(Survey, "look", looked)
    waits = second.batch()
    publish([(f"{stream}.x", b"x")])

    assert waits == []
    assert until_it_reads(second) == [16]


def test_the_position_of_one_that_waits_may_be_gone(js, new_stream, publish, query):
    """
    A query that waits for days is not alarmed by what left the stream meanwhile: only what the
    query that reads had not committed counts.
    """
    stream = new_stream()
    publish([(f"{stream}.x", b"x") for _ in range(10)])
    first, second = query(stream=stream), query(stream=stream)
    first.batch()
    second.batch()
    publish([(f"{stream}.x", b"x") for _ in range(10)])
    first.batch()
    first.batch()
    js.purge(stream, None, 21)
    waits = second.batch()
    publish([(f"{stream}.x", b"x") for _ in range(5)])
    first.stop()
    found = until_it_reads(second)

    assert waits == []
    assert found == list(range(21, 26))


def test_what_is_gone_is_told_once(js, new_stream, publish, query, caplog, monkeypatch):
    """
    With failOnDataLoss=false a query that reads tells once that messages are gone, or that the
    stream was made anew, and goes on; so does one that takes its place afterwards.
    """
    stream = new_stream()
    publish([(f"{stream}.x", b"x") for _ in range(10)])
    first, second = (query(stream=stream, failOnDataLoss="false") for _ in range(2))
    first.batch()
    second.batch()
    publish([(f"{stream}.x", b"x") for _ in range(10)])
    js.purge(stream, None, 21)
    for _ in range(3):
        first.batch()
    purged = caplog.text.count("data loss")
    api(js, f"STREAM.DELETE.{stream}")
    new_stream(stream)
    publish([(f"{stream}.x", b"x") for _ in range(3)])
    eventually(lambda: first.batch() or caplog.text.count("data loss") > purged)
    for _ in range(3):
        first.batch()
    anew = caplog.text.count("data loss")
    notes, note = [], Lease.note
    with monkeypatch.context() as patched:
        patched.setattr(Lease, "note", lambda *args: notes.append(args) or note(*args))
        for _ in range(3):
            first.batch()
    publish([(f"{stream}.x", b"x") for _ in range(2)])
    first.stop()
    found = until_it_reads(second)

    assert (purged, anew) == (1, 2)
    assert first.sequences == [*range(1, 11), 1, 2, 3]
    assert found == [4, 5]
    assert notes == []


def test_latest_begins_where_the_first_query_began(js, new_stream, publish, query, apart):
    """
    With startingOffsets=latest the second query does not begin where it was started, but with what
    the first one has not committed, and reads that once, though it ends where it was started.
    """
    stream = new_stream()
    publish([(f"{stream}.x", b"x") for _ in range(10)])
    first = apart(stream=stream, startingOffsets="latest")
    first.batch()
    publish([(f"{stream}.x", b"x") for _ in range(10)])
    second = query(stream=stream, startingOffsets="latest")
    second.batch()
    second.batch()
    first.plan()
    first.kill()
    found = until_it_reads(second)
    again = [second.batch() for _ in range(3)]

    assert found == list(range(11, 21))
    assert again == [[], [], []]


def test_no_error_ends_the_watch(nats_server, monkeypatch, caplog):
    """
    An error that nobody has foreseen costs one look: who waits goes on watching, and takes over.
    """
    options = connection_to(nats_server)
    last, calls = Bucket.last, []

    def once(self, *keys):
        calls.append(keys)
        if len(calls) == 4:  # both look once, and one says that it waits, before their threads do
            raise RuntimeError("unforeseen")
        return last(self, *keys)

    monkeypatch.setattr(Bucket, "last", once)
    leases: list[Lease] = []
    try:
        for i in range(2):
            owner = Owner(f"q{i}", "h", i, True)
            leases.append(Lease(options, "WATCH", owner, "c", 6.0))
        reads, waits = leases
        deadline = time.monotonic() + 60
        while len(calls) < 5 and time.monotonic() < deadline:
            time.sleep(0.05)
        reads.close()
        while not waits.wait(0.1) and time.monotonic() < deadline:
            pass

        assert "unforeseen" in caplog.text
        assert waits.wait(0.1)
    finally:
        for lease in leases:
            lease.close()


def test_many_that_wait(nats_server):
    """
    Of many that wait exactly one takes a record that is free, and when it is given back again one.
    """
    options = connection_to(nats_server)
    leases: list[Lease] = []
    try:
        for i in range(6):
            owner = Owner(f"q{i}", "h", i, True)
            leases.append(Lease(options, "MANY", owner, "c", 6.0))
        deadline = time.monotonic() + 60
        while not any(lease.wait(0.01) for lease in leases) and time.monotonic() < deadline:
            pass
        time.sleep(0.5)
        first = [lease for lease in leases if lease.wait(0.01)]
        first[0].close()
        left = [lease for lease in leases if lease is not first[0]]
        deadline = time.monotonic() + 60
        while not any(lease.wait(0.01) for lease in left) and time.monotonic() < deadline:
            pass
        time.sleep(1.0)
        second = [lease for lease in left if lease.wait(0.01)]
    finally:
        for lease in leases:
            lease.close()

    assert len(first) == len(second) == 1


def test_one_that_is_new_is_not_the_first_to_read(js, new_stream, publish, query):
    """
    A query gets a standby, which starts before it: the new query ends with an error, as it would
    read from the first message once more. The query that has read goes on, and the new one waits.
    When the consumers are removed, a new query is the first to read.
    """
    stream = new_stream()
    publish([(f"{stream}.x", b"x") for _ in range(10)])
    alone = query(stream=stream, standby="false")
    until_it_reads(alone)
    at = alone.at
    alone.stop()
    early = query(stream=stream)
    with pytest.raises(OptionError, match=r"'hot-0' is that of query .* Start that query first"):
        early.batch()
    early.stop()
    again, second = query(start=at, stream=stream), query(stream=stream)
    publish([(f"{stream}.x", b"x") for _ in range(5)])
    assert until_it_reads(again) == [11, 12, 13, 14, 15]
    assert second.batch() == []
    again.stop()
    second.stop()
    js.purge(f"KV_{BUCKET}", f"$KV.{BUCKET}.{stream}.>", 1 << 60)  # there never was a lease
    with pytest.raises(OptionError, match="nats consumer rm"):
        query(stream=stream).batch()
    api(js, f"CONSUMER.DELETE.{stream}.hot-0")
    assert until_it_reads(query(stream=stream)) == list(range(1, 16))


@pytest.mark.parametrize("is_deleted", [True, False], ids=["removed", "left"])
def test_one_that_is_new_after_a_lease_that_was(js, new_stream, publish, query, is_deleted):
    """
    A query had a standby, then none, and is to have one again: the new one is not the first to
    read, whether the lease of then was removed or not.
    """
    stream = new_stream()
    first = begun(stream, publish, query)
    if is_deleted:
        js.publish(f"$KV.{BUCKET}.{stream}.hot", b"", [("KV-Operation", "DEL")])
    alone = query(start=first.at, stream=stream, standby="false")
    publish([(f"{stream}.x", b"x")] * 5)
    assert until_it_reads(alone) == [6, 7, 8, 9, 10]
    ended(alone)
    with pytest.raises(OptionError, match="Start that query first"):
        query(stream=stream).batch()


@pytest.mark.parametrize("mode", ["own", "direct"])
def test_a_stream_that_was_taken_back_before_a_take_over(tmp_path, mode):
    """
    The stream comes back with an older store, and is written to beyond what the first query has
    read. The second one knows by the lease what the stream was after the first one's last batch.
    """
    store = Store(tmp_path)
    with ExitStack() as at_the_end:
        at_the_end.callback(store.server.close)
        js = JetStream(at_the_end.enter_context(closing(Client(connection_to(store.server)))))
        js.create_stream({"name": "S", "subjects": ["S"], "allow_direct": True})

        def begin():
            made = Query(store.server, **LEASE | {"stream": "S", "directBelow": BELOW[mode]})
            at_the_end.callback(made.stop)
            return made

        def read_up_to(last):
            while js.publish("S", b"x", []) < last:
                pass
            while last not in first.sequences:
                until_it_reads(first)
            first.commit()

        first = begin()
        read_up_to(60)
        store.copy()
        read_up_to(100)
        assert first.batch() == []  # notes where the next one begins
        first.stop()
        store.take_back("S")
        while js.publish("S", b"y", []) < 140:
            pass
        with pytest.raises(DataLossError, match="older copy of it was restored.*written to since"):
            until_it_reads(begin())


def test_one_that_has_read_less_after_the_bucket_was_lost(js, new_stream, publish, query):
    """Who has read less than the last reader is not the first to read, either."""
    stream = new_stream()
    first, _ = in_turn(stream, publish, query)
    js.purge(f"KV_{BUCKET}", f"$KV.{BUCKET}.{stream}.>", 1 << 60)
    with pytest.raises(OptionError, match="Start that query first"):
        query(start=first.at, stream=stream).batch()


def test_a_take_over_asks_by_the_leases_own_connection(new_stream, publish, query, monkeypatch):
    """
    The lease's thread takes over while the driver goes on asking, so it does not ask by the
    driver's connection.
    """
    asked, infos = [], JetStream.consumer_infos

    def noted(self, consumers):
        asked.append((threading.current_thread().name, id(self.client)))
        return infos(self, consumers)

    monkeypatch.setattr(JetStream, "consumer_infos", noted)
    stream = new_stream()
    first, second = (query(stream=stream) for _ in range(2))
    first.batch()
    second.batch()
    publish([(f"{stream}.x", b"x")] * 5)
    until_it_reads(first)
    ended(first)
    publish([(f"{stream}.x", b"x")] * 5)
    until_it_reads(second)

    by_thread = {client for thread, client in asked if thread == "lease"}
    assert by_thread
    assert by_thread.isdisjoint(client for thread, client in asked if thread != "lease")


def test_what_is_refused(js, new_stream, publish, query):
    """
    A standby without a consumer's name, beside a query of another layout, or
    with a bucket that forgets, is an error when the query starts.
    """
    stream = new_stream()
    publish([(f"{stream}.0.x", b"x")])
    nameless = {name: value for name, value in LEASE.items() if name != "consumer"}
    with pytest.raises(OptionError, match="option 'standby': needs option 'consumer'"):
        Query(type("Server", (), {"url": js.client.options.servers[0]}), stream=stream, **nameless)
    first = query(stream=stream)
    first.batch()
    first.stop()
    other = query(stream=stream, partitions=2, partitionSubject=f"{stream}.{{partition}}.>")
    with pytest.raises(OffsetError, match="active query reads 1 partitions"):
        other.batch()
    api(js, f"STREAM.DELETE.KV_{BUCKET}")
    config = {"name": f"KV_{BUCKET}", "subjects": [f"$KV.{BUCKET}.>"], "max_age": 10**12}
    js.create_stream(config)
    try:
        with pytest.raises(OptionError, match="has a max_age"):
            query(stream=stream).batch()
    finally:
        api(js, f"STREAM.DELETE.KV_{BUCKET}")


def test_an_unfinished_batch_of_a_stream_that_was_made_anew(js, new_stream, publish, query, apart):
    """
    An unfinished batch that another query has committed has the tasks that it had also where one of
    its streams was made anew since: the ledger of a write knows rows by their tasks.
    """
    names = [new_stream(f"ANEW-{number}") for number in range(2)]
    of = {"stream": "ANEW-{partition}", "partitions": 2}
    first, second = apart(**of), query(**of)
    first.batch()
    second.batch()
    start = first.at
    publish([(f"{name}.x", b"x") for name in names for _ in range(5)])
    end, tasks = first.plan()
    first.kill()
    until_it_reads(second)
    publish([(f"{name}.x", b"x") for name in names])
    second.batch()  # notes that the batch before is committed
    second.stop()
    api(js, f"STREAM.DELETE.{names[0]}")
    new_stream(names[0])
    again = query(**of)

    assert len(tasks) == 2
    assert [task.work for task in again.reader.partitions(start, end)] == [WarmUp()] * 2


def test_an_unfinished_batch_that_somebody_read(js, new_stream, publish, query, apart):
    """
    That a query's unfinished batch has left the stream is no data loss once another one has
    committed it; what nobody has committed is one.
    """
    stream = new_stream()
    publish([(f"{stream}.x", b"x") for _ in range(10)])
    first, second = apart(stream=stream), query(stream=stream)
    first.batch()
    second.batch()
    start = first.at
    publish([(f"{stream}.x", b"x") for _ in range(10)])
    end, _ = first.plan()
    first.kill()
    until_it_reads(second)
    publish([(f"{stream}.x", b"x") for _ in range(10)])
    second.batch()  # notes that 20 is committed
    second.stop()
    js.purge(stream, None, 26)
    again = query(stream=stream)
    tasks = again.reader.partitions(start, end)
    rows = [row for task in tasks for batch in again.reader.read(task) for row in batch.to_pylist()]

    assert rows == []
    with pytest.raises(DataLossError, match="sequences 21 to 25 left"):
        again.reader.latestOffset(end, ReadAllAvailable())


def test_one_whose_place_was_taken_settles_nothing(js, new_stream, publish, query, apart):
    """
    What Spark still tells a query that lost its place about commits does not reach the stream: the
    messages are the other one's to read.
    """
    stream = new_stream(retention="workqueue")
    first, second = apart(stream=stream), query(stream=stream)
    first.batch()
    second.batch()
    publish([(f"{stream}.x", b"x") for _ in range(10)])
    until_it_reads(first)
    first.freeze()
    deadline = time.monotonic() + 120
    while second.reader.latestOffset(second.at, ReadAllAvailable()) == second.at:
        assert time.monotonic() < deadline
    first.thaw()
    first.commit()
    left = js.stream_info(stream).messages
    found = second.batch()

    assert left == 10
    assert first.sequences == found == list(range(1, 11))
