"""Rows that wait for pauses through kills: each is stored once, in the order of its subject."""

import gc
import random
import threading
import time
from contextlib import closing
from itertools import count

import pytest

from pyspark_jetstream.client import wire
from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.errors import JetStreamError, NotConnectedError, WriterFencedError
from pyspark_jetstream.outbox.throttling.throttleprotocol import (
    Active,
    Producer,
    Reason,
    ThrottleProducer,
    understand,
)
from pyspark_jetstream.publish import publisher
from pyspark_jetstream.write.watch import Watch

from ..kits import streams
from ..kits.clients import close_idle
from ..kits.options import connection_of, rules_of
from ..kits.seeds import fresh
from ..kits.writing import WriteQuery

CONTROLS = count()


class Query(WriteQuery):
    """One that knows what it has written."""

    def __init__(self, server, js, stream, **changes):
        rules = rules_of(throttle_max_wait_s=60.0)
        super().__init__(connection_of(server.url), stream, rules=rules, **changes)
        self.js, self.count = js, 0

    def made(self, count, size=1000):
        """The next batch of so many rows, in blocks of this size."""
        rows = self.rows(count, self.count)
        self.count += count
        return [rows.slice(at, size) for at in range(0, count, size)]

    def stored(self):
        """By subject, in order."""
        found: dict[str, list[int]] = {}
        for each in streams.stored(self.js, self.target).values():
            found.setdefault(each["subject"], []).append(int(each["data"]))
        return found

    def check(self):
        """Everything is stored, once and in the order of its subject."""
        lanes = (range(lane, self.count, 7) for lane in range(min(7, self.count)))
        assert sorted(self.stored().values()) == [[*lane] for lane in lanes]


class Whims(threading.Thread):
    """An operator who pauses other subjects now and then; writers that begin are told, too."""

    def __init__(self, server, control, subjects, seed):
        super().__init__(daemon=True)
        self.words = dict.fromkeys(subjects, 0.0)
        self._control = control
        self._requests = count(1)
        self._chance = random.Random(seed)
        self._options = connection_of(server.url)
        self._over = threading.Event()
        self.start()

    def run(self):
        while not self._over.is_set():
            try:
                with closing(Client(self._options)) as client:
                    self._command(client.connection)
            except NotConnectedError:
                time.sleep(0.05)  # the server is down

    def end(self):
        self._over.set()
        self.join(60)
        with closing(Client(self._options)) as client:
            self.words = dict.fromkeys(self.words, 0.0)
            self._send(client.connection, self._control)
            client.connection.ping(30)

    def _command(self, connection):
        connection.subscribe(f"{self._control}.active")
        connection.ping(30)
        due = 0.0
        while not self._over.is_set():
            frame = connection.next_frame(time.monotonic() + 0.02)
            said = understand(frame.data) if frame is not None and frame.data else None
            if isinstance(said, Producer):
                to = f"{self._control}.{said.producer_id}"
                self._send(connection, to)
                connection.send(wire.pub(to, Active(len(self.words)).encode()))
            if time.monotonic() >= due:
                chance = self._chance
                due = time.monotonic() + chance.choice((0.01, 0.1, 0.5))
                self.words = {name: chance.choice((0.0, 0.0, 0.6)) for name in self.words}
                self._send(connection, self._control)

    def _send(self, connection, to):
        for subject, seconds in self.words.items():
            reason = Reason.TopicProduceQuotaExceeded
            command = ThrottleProducer(next(self._requests), reason, seconds, subject)
            connection.send(wire.pub(to, command.encode()))


@pytest.fixture
def query(nats_server, js, ledger, new_stream):
    def make(control, window_s, **options):
        name = new_stream(duplicate_window=round(window_s * 1e9))
        return Query(nats_server, js, name, throttle_subject=control, **options)

    yield make
    close_idle()


class Killed(BaseException):
    """What ends an attempt as a kill does."""


class Fate(threading.local):
    """What becomes of this thread's attempt, and at which of its turns."""

    left = -1
    frozen: threading.Event | None = None
    stands: threading.Event | None = None

    def step(self):
        """The next turn: the thread is killed, or stands still, when it is the last one."""
        self.left -= 1
        if self.left == 0 and self.frozen is None:
            raise Killed
        if self.left == 0:
            self.stands.set()
            assert self.frozen.wait(120)


@pytest.fixture
def fate(monkeypatch):
    """Attempts that ask at each turn whether they go on."""
    one = Fate()
    real = Watch.may_go

    def asked(*arguments):
        one.step()
        return real(*arguments)

    monkeypatch.setattr(Watch, "may_go", asked)
    return one


class Zombie(threading.Thread):
    """An attempt that stands still amid its work, and goes on later."""

    def __init__(self, fate, steps, work):
        super().__init__(daemon=True)
        self.go_on, self.stands = threading.Event(), threading.Event()
        self._fate, self._steps, self._work = fate, steps, work
        self.error = None

    def run(self):
        self._fate.left, self._fate.frozen = self._steps, self.go_on
        self._fate.stands = self.stands
        try:
            self._work()
        except JetStreamError as error:
            self.error = error
        finally:
            close_idle()

    def end(self):
        self.go_on.set()
        self.join(120)
        assert not self.is_alive()
        assert self.error is None or isinstance(self.error, WriterFencedError), self.error


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("seed", fresh(__name__, 4), ids=["first", "second", "third", "fourth"])
def test_any_pauses_and_kills(query, nats_server, fate, seed):
    """Whoever is paused, killed, or goes on: each row once, each subject in order."""
    chance = random.Random(seed)
    window_s = chance.choice((120.0, 4.0))
    control = f"control{next(CONTROLS)}"
    one = query(control, window_s, ack_timeout_s=1.5)
    zombies: list[Zombie] = []
    whims = Whims(nats_server, control, [f"{one.target}.{lane}" for lane in range(4)], seed)

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
            if window_s < 10 and chance.random() < 0.2:
                time.sleep(window_s)

    for _ in range(12):
        blocks = one.made(chance.choice((4, 40, 200)), chance.choice((3, 1000)))
        published = tried(lambda blocks=blocks: one.task(blocks))
        if zombies and chance.random() < 0.3:
            zombies.pop(chance.randrange(len(zombies))).end()
        one.commit(published)
        if zombies and chance.random() < 0.3:
            zombies.pop(chance.randrange(len(zombies))).end()
    whims.end()
    while zombies:
        zombies.pop().end()
    one.check()
    gc.collect()  # what a killed process would have closed


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_what_a_frozen_attempt_has_not_sent_stays(query, nats_server, fate, monkeypatch):
    """Thawed when another has stored its rows and the ids are forgotten, it sends none."""
    monkeypatch.setattr(publisher, "_LONGEST_WAIT_S", 0.1)
    control = f"control{next(CONTROLS)}"
    one = query(control, 2.0, ack_timeout_s=0.5)
    blocks = one.made(4)
    with closing(Client(connection_of(nats_server.url))) as silent:
        silent.connection.subscribe(f"{control}.active")
        silent.connection.ping(60.0)
        first = Zombie(fate, 5, lambda: one.task(blocks))
        first.start()
        assert first.stands.wait(60)
        unsent = one.stored()
        one.batch(blocks)
        time.sleep(2.5)
        first.end()

    assert unsent == {}
    one.check()
