"""Rows of paused subjects in a stream of their own: parked, and sent on, once and in order."""

from __future__ import annotations

import gc
import json
import os
import pickle
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import closing
from dataclasses import replace
from itertools import count

import pyarrow as pa
import pytest

from pyspark_jetstream.client import connection as connections
from pyspark_jetstream.client import wire
from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.errors import (
    JetStreamError,
    LedgerError,
    NotConnectedError,
    OptionError,
    ProducerThrottledError,
    TargetChangedError,
    WriterFencedError,
)
from pyspark_jetstream.outbox.priority import Priority
from pyspark_jetstream.outbox.throttling.throttleprotocol import (
    Active,
    Producer,
    Reason,
    ThrottleProducer,
    understand,
)
from pyspark_jetstream.publish.publisher import Publisher
from pyspark_jetstream.write import drainer, parked
from pyspark_jetstream.write.attempt import TaskAttempt, TaskReport
from pyspark_jetstream.write.exactlyonce.changes import check_targets
from pyspark_jetstream.write.exactlyonce.ids import of_query
from pyspark_jetstream.write.exactlyonce.ledger import Ledger
from pyspark_jetstream.write.exactlyonce.records import TaskName
from pyspark_jetstream.write.parked import drain, ensure_parking
from pyspark_jetstream.write.task import write_task

from ..kits.checkpoints import write_checkpoint
from ..kits.options import connection_of, creation_of, rules_of, sink_of
from ..kits.places import ROOT
from ..kits.schemas import mistakes
from ..kits.seeds import fresh
from ..kits.servers import DevServer
from ..kits.tables import tables
from .test_inspect_job import run as inspect
from .test_publisher import stored
from .test_throttle_job import start, until

QUERIES = count()


class Query:
    """A streaming query without Spark: its batches, each of one task, and their commits."""

    def __init__(self, server, stream, park_bytes=1 << 30, **changes):
        self.id = f"query{next(QUERIES)}"
        self.stream = stream
        self.park = f"{stream}_PARKED"
        self.options = sink_of(
            connection_of(server.url),
            ledger=True,
            create=creation_of(stream, (f"{stream}.>",)),
            rules=rules_of(park_stream=self.park, park_bytes=park_bytes, throttle_max_wait_s=60.0),
            **changes,
        )
        self.batch = 0
        self.rows: dict[str, list[str]] = {}
        self.client = Client(self.options.connection)
        self.js = JetStream(self.client)
        Ledger(self.js).ensure()
        ensure_parking(self.js, self.options)

    def made(self, *subjects, rows=20):
        """The rows of the next batch, on these subjects in turn."""
        data = []
        for number in range(rows):
            subject = f"{self.stream}.{subjects[number % len(subjects)]}"
            of = self.rows.setdefault(subject, [])
            of.append(str(len(of)))
            data.append((subject, of[-1]))
        names, values = zip(*data, strict=True)
        return pa.record_batch({"subject": pa.array(names), "data": pa.array(values)})

    def write(self, batch, task=0, size=1000, report=None, **changes):
        """One attempt of the task."""
        client = Client(self.options.connection)
        try:
            name = TaskName(self.id, self.batch, task)
            options = replace(self.options, **changes)
            blocks = [batch.slice(at, size) for at in range(0, batch.num_rows, size)]
            ids = of_query(self.id, self.batch)
            return write_task(client, options, blocks, name, ids, report=report)
        finally:
            client.close()

    def commit(self, tasks=1, targets=()):
        """The driver's commit."""
        park = self.options.rules.park_stream or ""
        counts = {parked.PARK_BYTES: self.options.rules.park_bytes}
        Ledger(self.js).commit(self.id, self.batch, tasks, counts, targets, park)
        self.batch += 1

    def drain(self, **options):
        """What is left when the driver has drained."""
        return drain(self.options, self.id, **options)

    def parked(self):
        """Number of rows that are parked."""
        return self.js.stream_info(self.park).messages

    def check(self):
        """Everything is stored, once and in the order of its subject."""
        found: dict[str, list[str]] = {}
        for subject, data in stored(self.js, self.stream):
            found.setdefault(subject, []).append(data.decode())
        assert found == self.rows
        assert self.parked() == 0


@pytest.fixture
def query(nats_server, js, new_stream):
    made = []

    def make(throttle, window_s=120.0, **options):
        name = new_stream(allow_direct=True, duplicate_window=round(window_s * 1e9))
        made.append(Query(nats_server, name, throttle_subject=throttle.control, **options))
        return made[-1]

    yield make
    for each in made:
        each.js.delete_stream(each.park)
        each.client.close()
    while connections._idle.clients:
        connections._idle.clients.popitem()[1].close()


class Controller(threading.Thread):
    """Tells each writer that begins what is paused, and what is not any more."""

    def __init__(self, server, control):
        super().__init__(daemon=True)
        self.stop = threading.Event()
        self.words: dict[str, float] = {}
        self.control = control
        self._requests = count(1)
        self._options = connection_of(server.url)
        self._listens = threading.Event()
        self.start()
        assert self._listens.wait(60)

    def __call__(self, *subjects):
        """These are paused now, and no others; writers that begin are told, too."""
        self.words = dict.fromkeys(self.words, 0.0) | dict.fromkeys(subjects, 60.0)
        with closing(Client(self._options)) as client:
            for command in self._commands():
                client.connection.send(wire.pub(self.control, command))
            client.connection.ping(30)

    def _commands(self):
        reason = Reason.TopicProduceQuotaExceeded
        return [
            ThrottleProducer(next(self._requests), reason, seconds, subject).encode()
            for subject, seconds in list(self.words.items())
        ]

    def run(self):
        while not self.stop.is_set():
            try:
                with closing(Client(self._options)) as client:
                    self._answer(client.connection)
            except NotConnectedError:
                time.sleep(0.05)  # the server is down

    def _answer(self, connection):
        connection.subscribe(f"{self.control}.active")
        connection.ping(30)
        self._listens.set()
        while not self.stop.is_set():
            frame = connection.next_frame(time.monotonic() + 0.05)
            said = understand(frame.data) if frame is not None and frame.data else None
            if isinstance(said, Producer):
                to, commands = f"{self.control}.{said.producer_id}", self._commands()
                for command in [*commands, Active(len(commands)).encode()]:
                    connection.send(wire.pub(to, command))


@pytest.fixture
def throttle(nats_server):
    """What an operator pauses, on a control subject of the test's own."""
    one = Controller(nats_server, f"control{next(QUERIES)}")
    yield one
    one.stop.set()
    one.join(60)


def test_a_pause_holds_nobody_else(query, throttle):
    """
    B27: of two subjects one is paused: the batch ends, what is not paused is stored, later rows of
    the paused one are parked behind the others, and all are there in order when the pause is over.
    """
    one = query(throttle)
    throttle(f"{one.stream}.a")
    written = one.write(one.made("a", "b"))
    assert (written.acked, written.parked) == (10, 10)
    one.commit()
    assert one.drain() == 10
    assert one.write(one.made("a", "b")).parked == 10
    one.commit()
    assert Counter(subject for subject, _ in stored(one.js, one.stream)) == {f"{one.stream}.b": 20}
    throttle()
    written = one.write(one.made("a", "b"))
    assert (written.acked, written.parked) == (10, 10), "rows overtake those that are parked"
    one.commit()
    assert one.drain() == 0
    one.check()
    assert one.write(one.made("a", "b")).parked == 0
    one.commit()
    one.check()


def test_a_row_is_what_it_was(query, throttle):
    """
    Ids, headers and payloads of rows are the same, whether they were parked or not.
    """
    one = query(throttle)
    lists = pa.map_(pa.string(), pa.list_(pa.string()))
    headers = [("X", ["1", "2"]), ("Jetstream-Sink-Reason", ["mine"])]
    rows = pa.record_batch({
        "subject": pa.array([f"{one.stream}.{name}" for name in "aabb"]),
        "data": pa.array([b"", b"\x00\xff", b"", b"\x00\xff"]),
        "headers": pa.array([headers, None] * 2, lists),
        "msg_id": pa.array(["own-1", None, "own-2", None]),
    })  # fmt: skip
    throttle(f"{one.stream}.a")
    assert one.write(rows).parked == 2
    one.commit()
    throttle()
    assert one.drain() == 0

    found = one.js.messages(one.stream, [{"seq": sequence} for sequence in (1, 2, 3, 4)])
    b, b_made, a, a_made = found
    own = [[pair for pair in each.headers if pair[0] != "Nats-Msg-Id"] for each in found]
    assert own[0] == own[2] and own[0] and own[1] == own[3] == []
    assert [each.data for each in found] == [b"", b"\x00\xff"] * 2
    ids = [dict(each.headers)["Nats-Msg-Id"] for each in found]
    assert ids[0] == "own-2" and ids[2] == "own-1"
    assert (ids[1][:-1], ids[1][-1], ids[3][-1]) == (ids[3][:-1], "3", "1")


def test_a_full_parking_stream_is_as_none(query, throttle, caplog):
    """
    B27: while the parking stream is full rows of a paused subject wait in their batch; the others
    of the batch are stored. That is said once.
    """
    one = query(throttle, park_bytes=1)
    throttle(f"{one.stream}.a")
    assert one.write(one.made("a", "b")).parked == 10
    one.commit()
    waiting = Zombie(Fate(), -1, lambda: one.write(one.made("a", "b", rows=40)))
    waiting.start()
    until(lambda: one.js.stream_info(one.stream).messages == 30)
    assert one.parked() == 10
    throttle()
    waiting.end()
    one.commit()
    assert one.drain() == 0
    one.check()
    assert sum("throttleParkBytes" in each.message for each in caplog.records) == 1


def attempt(options, batch, name, ids):
    """One attempt of a task, in a process of its own."""
    write_task(Client(options.connection), options, [batch], name, ids)


def begun(function, *arguments):
    """A process that does it; it may be killed at any time."""
    script = "import pickle, sys; call, given = pickle.load(sys.stdin.buffer); call(*given)"
    process = subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    with process.stdin:
        process.stdin.write(pickle.dumps((function, arguments)))
    return process


@pytest.mark.parametrize("seed", fresh(__name__, 1))
def test_processes_and_the_server_are_killed(tmp_path, seed):
    """
    Attempts and drains that are killed (SIGKILL), and the server between them: every row is stored
    once, in the order of its subject.
    """
    chance = random.Random(seed)
    with DevServer() as server:
        throttle = Controller(server, "killed")
        setup = Client(connection_of(server.url))
        JetStream(setup).create_stream({"name": "S", "subjects": ["S.>"], "allow_direct": True})
        setup.close()
        one = Query(server, "S", throttle_subject="killed")

        def until_done(*work):
            while True:
                process = begun(*work)
                time.sleep(chance.choice((0.5, 1.0, 2.0)))
                if chance.random() < 0.3:
                    server.kill()
                    server.restart()
                if chance.random() < 0.5:
                    process.kill()
                if process.wait(120) == 0:
                    break

        for _ in range(4):
            throttle(*(f"S.{name}" for name in "ab" if chance.random() < 0.7))
            name, ids = TaskName(one.id, one.batch, 0), of_query(one.id, one.batch)
            until_done(attempt, one.options, one.made(*"abc", rows=3000), name, ids)
            one.commit()
            until_done(drain, one.options, one.id)
        throttle()
        while one.drain():
            pass
        one.check()
        one.client.close()
        throttle.stop.set()
        throttle.join(60)


def test_parked_rows_are_counted_and_sent_by_hand(query, throttle, nats_server):
    """
    `throttle parked` shows how many rows of which query and subject wait, and sends those that may
    go: the exit status says whether any are left.
    """
    one = query(throttle)
    throttle(f"{one.stream}.a")
    one.write(one.made("a", "b"))
    one.commit()
    subject, row = ("--throttle-subject", throttle.control), {"query": one.id, "rows": 10}

    def run(*arguments):
        given = ["parked", "--stream", one.park, *subject, "--json", *arguments]
        ended = start(nats_server, *given)
        out, err = ended.communicate(timeout=120)
        return ended.returncode, json.loads(out), err

    counted, held = run(), run("--drain")
    throttle()
    sent = run("--drain")

    rows = {"parked": [row | {"subject": f"{one.stream}.a"}]}
    assert counted[:2] == (0, rows), counted
    assert held[:2] == (3, rows), held
    assert sent[:2] == (0, {"parked": []}), sent
    text = start(nats_server, "parked", "--stream", one.park).communicate(timeout=120)[0]
    assert text == f"no rows wait in stream '{one.park}'\n"
    one.check()


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"max_age": 10**9}, "max_age"),
        ({"max_bytes": 1 << 20}, "max_bytes"),
        ({"retention": "workqueue"}, "workqueue retention"),
        ({"deny_purge": True}, "deny_purge"),
        ({"no_ack": True}, "no_ack"),
        ({"max_msg_size": 1000}, "max_msg_size"),
        ({"max_msgs": 15, "discard": "new"}, "max_msgs"),
        ({"subjects": ["elsewhere.>"]}, "does not take"),
    ],
)
def test_a_stream_that_would_lose_parked_rows_is_refused(js, new_stream, config, why):
    """
    A parking stream keeps each row until it is removed, else no row moves.
    """
    name = new_stream(**config)
    options = sink_of(js.client.options, ledger=True, rules=rules_of(park_stream=name))

    with pytest.raises(OptionError, match=why):
        ensure_parking(js, options)


def test_a_parking_stream_is_made_where_that_is_asked_for(js, new_stream):
    """
    Without `createStream` one that is missing is an error, which says so.
    """
    options = sink_of(js.client.options, ledger=True, rules=rules_of(park_stream="NONE"))

    with pytest.raises(OptionError, match="createStream=true makes it"):
        ensure_parking(js, options)


class Killed(BaseException):
    """What ends an attempt or a drain as a kill does."""


class Fate(threading.local):
    """What becomes of this thread's attempt or drain, and at which of its steps."""

    left = -1
    frozen: threading.Event | None = None

    def step(self):
        """The next step: the thread is killed, or stands still, when it is the last one."""
        self.left -= 1
        if self.left == 0 and self.frozen is None:
            raise Killed
        if self.left == 0:
            assert self.frozen.wait(120)


@pytest.fixture
def fate(monkeypatch):
    """Attempts and drains that ask at each turn, and ahead of each removal, whether they go on."""
    one = Fate()
    looks = (TaskAttempt, "_check_latest"), (parked._Drain, "_check_latest"), (JetStream, "purge")
    for owner, name in looks:
        real = getattr(owner, name)

        def asked(*arguments, real=real):
            one.step()
            return real(*arguments)

        monkeypatch.setattr(owner, name, asked)
    return one


class Zombie(threading.Thread):
    """An attempt or a drain that stands still amid its work, and goes on later."""

    def __init__(self, fate, steps, work):
        super().__init__(daemon=True)
        self.go_on = threading.Event()
        self._fate, self._steps, self._work = fate, steps, work
        self.error = None

    def run(self):
        self._fate.left, self._fate.frozen = self._steps, self.go_on
        try:
            self._work()
        except JetStreamError as error:
            self.error = error
        finally:
            for client in connections._idle.clients.values():
                client.close()

    def end(self):
        self.go_on.set()
        self.join(120)
        assert not self.is_alive()
        assert self.error is None or isinstance(self.error, WriterFencedError), self.error


class Whims(threading.Thread):
    """An operator who pauses other subjects every few milliseconds."""

    def __init__(self, throttle, subjects, seed):
        super().__init__(daemon=True)
        self._throttle, self._subjects, self._chance = throttle, subjects, random.Random(seed)
        self._over = threading.Event()
        self.start()

    def run(self):
        while not self._over.wait(self._chance.choice((0.001, 0.01, 0.1))):
            self._throttle(*(name for name in self._subjects if self._chance.random() < 0.4))

    def end(self):
        self._over.set()
        self.join(60)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("seed", fresh(__name__, 4), ids=["first", "second", "third", "fourth"])
def test_any_pauses_and_kills(query, throttle, fate, seed):
    """
    Whatever is paused when, whoever is killed where, and whoever was thought dead and goes on:
    every row is stored once, and each subject has its order.
    """
    chance = random.Random(seed)
    is_whimsical = chance.random() < 0.5
    window_s = chance.choice((120.0, 4.0))
    one = query(throttle, window_s, ack_timeout_s=1.5)
    names = "abcd"
    zombies: list[Zombie] = []
    subjects = [f"{one.stream}.{name}" for name in names]
    whims = Whims(throttle, subjects, seed) if is_whimsical else None

    def tried(work):
        """As often as it takes; some attempts are killed, some come back later."""
        while True:
            what = chance.random()
            steps = chance.randrange(1, 12)
            if what < 0.2 and len(zombies) < 3:
                zombies.append(Zombie(fate, steps, work))
                zombies[-1].start()
                zombies[-1].join(chance.choice((0.05, 0.3)))
            fate.left = steps if what > 0.5 else -1
            try:
                return work()
            except (Killed, WriterFencedError):
                pass  # or a zombie has taken the record over
            finally:
                fate.left = -1
            if chance.random() < 0.3:
                one.drain(for_s=chance.choice((0.01, 0.1, 10.0)))  # by another process
            if window_s < 10 and chance.random() < 0.2:
                time.sleep(window_s)

    for _ in range(12):
        if whims is None and chance.random() < 0.6:
            throttle(*(name for name in subjects if chance.random() < 0.4))
        batch = one.made(*names, rows=chance.choice((4, 40, 200)))
        size = chance.choice((3, 1000))
        tried(lambda batch=batch, size=size: one.write(batch, size=size))
        if zombies and chance.random() < 0.3:
            zombies.pop(chance.randrange(len(zombies))).end()
        one.commit()
        if chance.random() < 0.7:
            tried(one.drain)
        if zombies and chance.random() < 0.3:
            zombies.pop(chance.randrange(len(zombies))).end()
    if whims is not None:
        whims.end()
    throttle()
    while zombies:
        zombies.pop().end()
    for _ in range(20):
        if not one.drain():
            break
    one.check()
    gc.collect()  # what a killed process would have closed


def test_rows_that_were_sent_and_refused_go_ahead_of_those_behind_them(query, throttle):
    """
    B27: rows whose stream is full were sent, and wait in their task when an operator pauses their
    subject; so do those behind them. The attempt that follows one that ended meanwhile parks all
    that is not stored, in order.
    """
    one = query(throttle, max_in_flight=8, min_in_flight=8)
    one.js.update_stream(one.js.stream_info(one.stream).config | {"max_msgs": 5, "discard": "new"})
    rows, rules = one.made("a", rows=40), replace(one.options.rules, throttle_max_wait_s=4.0)
    ended = []

    def first():
        try:
            one.write(rows, rules=rules)
        except ProducerThrottledError as error:
            ended.append(error)

    waiting = threading.Thread(target=first)
    waiting.start()
    until(lambda: one.js.stream_info(one.stream).messages == 5)
    throttle(f"{one.stream}.a")
    waiting.join(120)
    assert ended
    one.js.update_stream(one.js.stream_info(one.stream).config | {"max_msgs": -1})
    assert one.write(rows).parked == 35
    one.commit()
    throttle()
    assert one.drain() == 0
    one.check()


def test_a_pause_that_comes_amid_a_write(query, throttle):
    """
    B27: rows of the subject that are on their way are stored, those behind them are parked as soon
    as they are, and the batch ends while the pause lasts.
    """
    one = query(throttle)

    def blocks():
        yield one.made("a", "b", rows=20_000)
        throttle(f"{one.stream}.a")
        end = time.monotonic() + 60
        while not one.parked():
            assert time.monotonic() < end
            yield one.made("a", "b")
        yield one.made("a", "b")

    with closing(Client(one.options.connection)) as client:
        name, ids = TaskName(one.id, one.batch, 0), of_query(one.id, one.batch)
        written = write_task(client, one.options, blocks(), name, ids)

    one.commit()
    assert written.parked == one.drain() > 0
    throttle()
    assert one.drain() == 0
    one.check()


def test_rows_of_a_batch_that_is_not_committed_stay_parked(query, throttle):
    """
    Its task may run again, and may have rows that are ahead of them.
    """
    one = query(throttle)
    throttle(f"{one.stream}.a")
    rows = one.made("a", "b")
    one.write(rows)
    throttle()
    assert one.drain() == 10
    assert {subject for subject, _ in stored(one.js, one.stream)} == {f"{one.stream}.b"}
    one.write(rows)
    one.commit()
    assert one.drain() == 0
    one.check()


def test_a_drain_sheds_nothing(query, throttle, monkeypatch):
    """
    Rows that a drain has taken and could not send in its time stay parked, whatever tasks do with
    rows that wait too long.
    """
    one = query(throttle, max_in_flight=1, min_in_flight=1, drops=True)
    throttle(f"{one.stream}.a")
    assert one.write(one.made("a", rows=3000)).parked == 3000
    one.commit()
    throttle()
    sheds = replace(one.options.rules, sheddable=frozenset({Priority.NORMAL}), queue_timeout_s=0.5)
    one.options = replace(one.options, rules=sheds)
    settle = Publisher.settle

    def late(publisher):
        time.sleep(1.0)
        settle(publisher)

    monkeypatch.setattr(Publisher, "settle", late)
    one.drain(for_s=0.2)
    monkeypatch.undo()
    while one.drain():
        pass
    one.check()


def test_rows_that_are_parked_amid_a_drain_are_sent_by_the_process_too(
    query, throttle, monkeypatch
):
    """
    The process that drains between batches ends when nothing is parked any more; that all is sent
    which was parked when it looked is not enough.
    """
    one = query(throttle)
    throttle(f"{one.stream}.a")
    one.write(one.made("a"))
    one.commit()
    throttle(f"{one.stream}.b")
    drained = []

    def meanwhile(options, name, **process):
        drained.append(drain(options, name, **process))
        if len(drained) == 1:
            one.write(one.made("b"))
            one.commit()
            throttle()
        return drained[-1]

    monkeypatch.setattr(drainer, "drain", meanwhile)
    drainer.send_all(one.options, one.id, os.getpid(), lambda: None)
    assert drained[0] == 0
    one.check()


@pytest.mark.parametrize("accepted", [False, True])
def test_the_option_is_not_taken_away_while_rows_are_parked(query, throttle, accepted):
    """
    A query whose option names no stream any more fails before a row moves, as long as rows are
    parked: later ones would overtake them. So it is where what streams hold was accepted
    (`rewind --accept`).
    """
    one = query(throttle)
    throttle(f"{one.stream}.a")
    one.write(one.made("a", "b"))
    one.commit()
    throttle()
    if accepted:
        Ledger(one.js).accept(one.id, one.batch - 1)
    given, rows = one.options, one.made("a", "b")
    one.options = replace(given, rules=replace(given.rules, park_stream=None))
    with pytest.raises(OptionError, match=f"10 rows .* {one.park} --drain"):
        one.write(rows)
    assert drain(given, one.id) == 0
    assert one.write(rows).acked == 20
    one.commit()
    assert one.write(one.made("a", "b")).acked == 20
    one.commit()
    one.check()
    assert Ledger(one.js).look(TaskName(one.id, one.batch, 0)).committed.parking == ""


def test_a_query_is_not_set_back_while_rows_are_parked(query, throttle):
    """
    Parked rows of batches that are written again would go out beside the same rows under other ids:
    they are sent first.
    """
    one = query(throttle)
    throttle(f"{one.stream}.a")
    one.write(one.made("a", "b"))
    one.commit()
    with pytest.raises(LedgerError, match=f"10 of its rows are parked .* {one.park} --drain"):
        Ledger(one.js).rewind(one.id, one.batch - 1, force=True)

    throttle()
    assert drain(one.options, one.id) == 0
    assert Ledger(one.js).rewind(one.id, one.batch - 1, force=True)


def test_rows_of_several_streams_and_queries_may_have_one_id(query, throttle, js, new_stream):
    """
    A parking stream that has rows for two streams, and those of two queries, keeps each of them,
    though a row is copied to all of them under its own id.
    """
    one, two = query(throttle), query(throttle)
    two.options = replace(two.options, rules=one.options.rules)
    other = new_stream(allow_direct=True)
    subjects = [f"{one.stream}.a", f"{other}.a", f"{two.stream}.a"]
    throttle(*subjects)

    def rows(*names):
        ids = [f"SOURCE-{number}" for number in range(3)]
        return pa.record_batch({
            "subject": pa.array([name for name in names for _ in ids]),
            "data": pa.array(ids * len(names)),
            "msg_id": pa.array(ids * len(names)),
        })  # fmt: skip

    assert one.write(rows(*subjects[:2])).parked == 6
    assert two.write(rows(subjects[2])).parked == 3
    one.commit()
    two.commit()
    assert one.parked() == 9
    throttle()
    assert one.drain() == two.drain() == 0

    expected = [b"SOURCE-0", b"SOURCE-1", b"SOURCE-2"]
    for subject in subjects:
        assert [data for _, data in stored(js, subject.partition(".")[0])] == expected


def test_rows_do_not_go_to_the_parking_stream_themselves(query, throttle, js):
    """
    A stream that rows are for is no parking stream: what reads it would get parked rows.
    """
    one = query(throttle)
    rules = replace(one.options.rules, park_stream=one.stream)
    one.options = replace(one.options, rules=rules)
    with pytest.raises(OptionError, match=f"rows go to stream '{one.stream}' itself"):
        one.write(one.made("a"))
    assert js.stream_info(one.stream).messages == 0


def test_of_two_processes_that_drain_the_later_one_goes_on(query, throttle):
    """
    Spark stops the Python process that commits when it was idle for a minute, and each that follows
    starts a process that drains: the one before ends.
    """
    one = query(throttle)
    throttle(f"{one.stream}.a")
    one.write(one.made("a"))
    one.commit()
    ended: list[int] = []

    def begin(number):
        work = (one.options, one.id, os.getpid(), lambda: ended.append(number))
        thread = Zombie(Fate(), -1, lambda: drainer.send_all(*work))
        thread.start()
        return thread

    def holder():
        (record,) = one.js.last_messages("KV_SPARK_LEDGER", [f"$KV.SPARK_LEDGER.{one.id}.parked"])
        return json.loads(record.data)["process"] if record is not None else ""

    first = begin(1)
    until(holder)
    known = holder()
    second = begin(2)
    until(lambda: holder() != known)
    first.end()
    assert one.drain() == 20
    assert second.is_alive() and ended == [1]
    throttle()
    second.end()
    one.check()


def test_inspect_shows_what_is_parked(query, throttle, nats_server, js, tmp_path):
    """
    How many rows are parked, of which queries and subjects, since when, and how full the stream is;
    with a checkpoint those of its query. The lines are no wider than the terminal.
    """
    one, two = query(throttle, park_bytes=2000), query(throttle)
    two.options = replace(two.options, rules=replace(two.options.rules, park_stream=one.park))
    throttle(*(f"{each.stream}.{name}" for each in (one, two) for name in "ab"))
    one.write(one.made("a", "a", "b", "c", rows=40))
    two.write(two.made("a", rows=5))
    one.commit()
    two.commit()
    checkpoint = str(write_checkpoint(tmp_path, [[]], committed=0, query=one.id))

    status, out, said = inspect(nats_server, "--stream", one.park)
    narrow = inspect(nats_server, "--checkpoint", checkpoint, COLUMNS="80")
    (of_all,), (of_one,) = (
        json.loads(inspect(nats_server, *words, "--json")[1])["parkings"]
        for words in (("--stream", one.park), ("--checkpoint", checkpoint))
    )
    shown = tables(out)
    (stream,) = shown["Parking"]
    a, b = ({"subject": f"{one.stream}.{name}", "query": one.id} for name in "ab")

    assert (status, said) == (0, "")
    assert (stream["stream"], stream["rows"], stream["subjects"]) == (one.park, "35", "3")
    assert (stream["used"], stream["throttleParkBytes"]) == ("0%", "1.0 GiB")
    assert [row["rows"] for row in shown[f"Parked in {one.park}"]] == ["20", "10", "5"]
    assert narrow[0] == 0 and f"{one.stream}.b" in narrow[1]
    assert two.id not in narrow[1]
    assert max(map(len, narrow[1].partition("\nParking\n")[2].splitlines())) <= 80
    assert (of_all["rows"], of_one["rows"], of_one["subjects"]) == (35, 30, 2)
    assert of_one["most_bytes"] == 2000 and "is full" in of_one["notes"][0]
    assert of_one["used"] == of_one["bytes"] / 2000 == js.stream_info(one.park).bytes / 2000
    rows = [{name: row[name] for name in ("subject", "query", "rows")} for row in of_one["parked"]]
    assert rows == [a | {"rows": 20}, b | {"rows": 10}]
    assert of_one["age_s"] >= of_one["parked"][1]["age_s"] > 0
    assert mistakes(json.loads(inspect(nats_server, "--json")[1]), "inspect") == []


def test_inspect_says_that_a_parking_stream_is_gone(query, throttle, nats_server, tmp_path):
    """
    The query that parks there fails at its next batch, and what was parked is lost: a problem.
    """
    one = query(throttle)
    throttle(f"{one.stream}.a")
    report = TaskReport()
    one.write(one.made("a"), report=report)
    one.commit(targets=check_targets(one.js, report.seen))
    one.js.delete_stream(one.park)
    checkpoint = str(write_checkpoint(tmp_path, [[]], committed=0, query=one.id))
    status, out, _ = inspect(nats_server, "--checkpoint", checkpoint)
    one.js.create_stream({"name": one.park, "subjects": [f"{one.park}.>"]})

    assert status == 3
    assert f"parking stream {one.park}: is gone" in out
    with pytest.raises(TargetChangedError, match="made anew"):
        one.write(one.made("a"))
