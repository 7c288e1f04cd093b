"""
A whole write against a model of the server: the publisher under pauses, refusals and broken
connections, every turn of it, on a clock that is a number.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_jetstream.client import wire
from pyspark_jetstream.client.peer import Permissions
from pyspark_jetstream.errors import NotConnectedError
from pyspark_jetstream.outbox.messages import Messages
from pyspark_jetstream.outbox.priority import Priority
from pyspark_jetstream.outbox.targets import Target
from pyspark_jetstream.outbox.throttling.pausetable import PauseTable
from pyspark_jetstream.outbox.throttling.throttleprotocol import Reason, ThrottleProducer
from pyspark_jetstream.publish import pauses
from pyspark_jetstream.publish.context import WriteContext
from pyspark_jetstream.publish.publisher import Publisher
from pyspark_jetstream.publish.telemetry import Origin, Telemetry

from .lanes import INBOX, ModelServer, Reply, Sent, error, messages, parse
from .options import FIXED, changed, connection_of, rules_of, sink_of, targets_of
from .shared import Clock

CONTROL = "spark.jetstream.throttle"
SUBJECTS = "abcd"

SECOND = "cd"
"""Subjects of the second stream."""

STREAMS = {
    subjects[0]: Target.parse({"name": subjects, "subjects": [*subjects]})
    for subjects in ("ab", SECOND)
}


class Supply:
    """Blocks that are there some time after they were asked for."""

    def __init__(self, clock, rng, blocks):
        self.asked = self.ended = False
        self.due = math.inf
        self._clock, self.rng = clock, rng
        self.blocks = list(blocks)
        """Those that were not yet taken."""

    def fileno(self):
        return -1

    def ask(self):
        self.asked = True
        self.due = self._clock.now + self.rng.choice([0.0, 0.0, 0.05, 2.0])

    def get(self):
        if not self.asked or self._clock.now < self.due:
            return None
        self.asked, self.due = False, math.inf
        self.ended = not self.blocks
        return self.blocks.pop(0) if self.blocks else None


class Net:
    """Client and connection, the network, the server and the operators behind it."""

    def __init__(self, clock, rng, supply):
        self.connection = self
        self.buffer, self.pos = b"", 0
        self.servers = ModelServer(), ModelServer()
        """One for each stream."""
        self.others: list[ModelServer] = []
        """Where goes what does not go to a row's own subject."""
        self.oracle = PauseTable()
        """What the writer has confirmed."""
        self.first_sent: dict[int, float] = {}
        """Since when a row may be stored, by its number."""
        self.commands: list[tuple[float, ThrottleProducer]] = []
        """When which is to be said."""
        self.chaos = 0.0
        """How often things break; 1 for now and then."""
        self.drops_plain = False
        self.on_sent: Callable[[Sent], bool] = lambda each: True
        """Whether the network takes this."""
        self.turns = 0
        self._clock, self._rng, self._supply = clock, rng, supply
        self._up: list[Sent] = []
        self._down: list[tuple[str, Reply]] = []  # to which lane
        self._frames: list[bytes] = []
        self.subscriptions: dict[str, int] = {}
        self._sid = 0
        self._said: dict[str, ThrottleProducer] = {}
        self.is_cut = False
        self._idle = 0

    # ── the connection ───────────────────────────────────────────────────────────────────────

    def drop(self):
        self.buffer, self.pos = b"", 0
        self._frames.clear()
        self.subscriptions.clear()
        self.is_cut = False

    def new_inbox(self):
        return INBOX

    def subscribe(self, subject, needed=True):
        self.check_up()
        self._sid += 1
        self.subscriptions[subject] = self._sid
        return self._sid

    def unsubscribe(self, sid):
        pass

    def check(self, now, silence_s):
        """It is there, even where it answers nothing."""

    def send(self, data, timeout_s=30.0):
        self.check_up()
        for each in parse(bytes(data)):
            if each.subject.startswith("operator."):
                self.receipt(each)
                continue
            self.note(each)
            if self.on_sent(each):
                self._up.append(each)

    def answer(self, reply, data, timeout_s=30.0):
        self.send(wire.pub(reply.decode(), data))

    def offer(self, subject, data, reply="", timeout_s=30.0):
        """No controller runs, says the server in time."""
        if reply:
            self.check_up()
            assert (subject, reply) == (f"{CONTROL}.active", f"{INBOX}.active")
            self._down.append(("active", Reply(b"", wire.NO_RESPONDERS, b"")))
        else:
            self.send(wire.pub(subject, data))
        return True

    @property
    def permissions(self):
        return Permissions(INBOX)

    def poll(self):
        self.check_up()
        self._step()
        if not self._frames:
            return False
        self.buffer = self.buffer[self.pos :] + b"".join(self._frames)
        self.pos = 0
        self._frames.clear()
        return True

    def next_frame(self, deadline):
        self.check_up()
        found, where = wire.next_frame(self.buffer, self.pos)
        if found is None:
            return None
        self.pos = where
        assert isinstance(found, wire.Frame)
        return found

    def wait(self, deadline, other=-1):
        self.turns += 1
        assert self.turns < 200_000, "hangs"
        now = self._clock.now
        self._idle = self._idle + 1 if deadline <= now else 0
        assert self._idle < 20, "spins"
        if self._up or self._down:
            self._clock.now = max(now, min(deadline, now + self._rng.choice([0.0005, 0.02])))
            return
        at = min([deadline, self._supply.due, *(at for at, _ in self.commands[:1])])
        self._clock.now = max(now, at)

    def check_up(self):
        """Raises where the connection is cut."""
        if self.is_cut:
            raise NotConnectedError("model", "cut")

    # ── what happens ─────────────────────────────────────────────────────────────────────────

    def _step(self):
        rng, now = self._rng, self._clock.now
        for server in (*self.servers, *self.others):
            server.now = now
        while self.commands and self.commands[0][0] <= now:
            self._say(self.commands.pop(0)[1])
        event = rng.random() / self.chaos if self.chaos else 1.0
        if event < 0.004:
            del self._up[rng.randrange(len(self._up) + 1) :]
            for each in self._up:
                self.server_of(each).publish(each)
            self.cut()
            return
        if event < 0.005:
            self._down = []
        for _ in range(rng.choice([0, 3, 40, 400])):
            if not self._up:
                break
            sent = self._up.pop(0)
            self._down += [(sent.reply.split(".")[2], each) for each in self._take(sent)]
        count = rng.choice([0, 3, 40, 400])
        sid = self.subscriptions.get(f"{INBOX}.>")
        if sid is not None:
            self._frames += [_frame(lane, each, sid) for lane, each in self._down[:count]]
        del self._down[:count]

    def server_of(self, each):
        """That of the stream that takes it."""
        return self.servers[each.subject in SECOND]

    def cut(self):
        """The connection breaks; what is on its way is lost."""
        self._up, self._down, self.is_cut = [], [], True

    def _take(self, each):
        server = self.server_of(each)
        found: list[Reply] | None = None
        if self.chaos and self.drops_plain:
            if self._rng.random() < 0.002 * self.chaos:
                code, err_code = self._rng.choice([(429, 10167), (503, 0), (0, 10023)])
                found = server.refused(each, code, err_code)
            elif self._rng.random() < 0.002 * self.chaos and each.data:
                found = server.fails(each, error(503, 10077))
        return server.publish(each) if found is None else found

    def _say(self, command):
        reply = f"operator.{len(self._said)}"
        self._said[reply] = command
        data = command.encode()
        sid = self.subscriptions.get(CONTROL)
        if sid is not None:
            head = f"MSG {CONTROL} {sid} {reply} {len(data)}\r\n"
            self._frames.append(head.encode() + data + b"\r\n")

    def receipt(self, each):
        """The writer says that it has heard a command."""
        self.oracle.command(self._said[each.subject], self._clock.now)

    def note(self, each):
        """Of what is sent, which row may be stored from now on."""
        now, row = self._clock.now, int(each.data.split(b".")[0])
        pause = self.oracle.matcher(now)(each.subject)
        assert not pause, f"row {row} to {each.subject} sent at {now} within {pause}"
        self.first_sent.setdefault(row, now)


def _frame(lane, reply, sid):
    subject = f"{INBOX}.{lane}.{reply.token.decode()}"
    if not reply.status:
        return f"MSG {subject} {sid} {len(reply.data)}\r\n".encode() + reply.data + b"\r\n"
    head = f"NATS/1.0 {reply.status}\r\n\r\n".encode()
    sizes = f"{len(head)} {len(head) + len(reply.data)}"
    return f"HMSG {subject} {sid} {sizes}\r\n".encode() + head + reply.data + b"\r\n"


class World:
    """One write."""

    def __init__(self, monkeypatch, blocks, rng, is_checked=False, **options):
        self.clock = Clock()
        monkeypatch.setattr(pauses, "_PATIENCE", {})
        self.supply = Supply(self.clock, rng, blocks)
        self.net = Net(self.clock, rng, self.supply)
        self.server = self.net.servers[0]
        targets = targets_of(STREAMS.get)
        targets.of(pa.array([*STREAMS]))
        sink = changed(sink_of(connection_of("nats://model"), publish_timeout_s=1e9), **options)
        self.telemetry = Telemetry(sink.priorities.routes)
        self.stored_before: Callable[[Messages], pa.Array] | None = None
        """Says of rows about to be sent which ones an earlier attempt has stored."""
        context = WriteContext(
            sink, targets, Origin(7), self.telemetry, is_checked=is_checked, clock=self.clock
        )
        self.publisher = Publisher(self.net, context, self.supply)
        give_back = self.publisher.admission.give_back

        def checked(back, now):
            assert not self.net.first_sent.keys() & back.rows.to_pylist(), "was sent"
            give_back(back, now)

        monkeypatch.setattr(self.publisher.admission, "give_back", checked)

    def run(self):
        with self.publisher as publisher:
            while publisher.busy:
                for leaving in publisher.leaving():
                    fresh = None
                    if self.stored_before is not None:
                        fresh = pc.invert(self.stored_before(leaving.rows))
                    publisher.release(leaving, fresh)
                publisher.turn()
        return publisher.finish()

    def rows(self, subject=None):
        """The numbers of what is stored, in order."""
        return [
            int(each.data.split(b".")[0])
            for server in self.net.servers
            for each in server.stored
            if subject in (None, each.subject)
        ]


def block(subjects, first, data=None, ids=True):
    found = messages(list(subjects), data, first=first, ids=ids)
    targets = [int(subject in SECOND) for subject in found.distinct]
    return replace(found, targets=pa.array(targets, pa.int32()))


def command(number, subject, pause_s, reason=0):
    """A pause."""
    return ThrottleProducer(number, Reason(reason), round(pause_s, 3), subject)


# ── what does not go to a row's own subject ──────────────────────────────────────────────────


def is_row(each):
    """Whether it goes to a row's own subject."""
    return each.subject in SUBJECTS


def elsewhere(monkeypatch, world):
    """A third stream, which takes dead letters and metrics."""
    found, net = ModelServer(), world.net
    note, servers = net.note, net.servers
    net.others.append(found)
    net.server_of = lambda each: servers[each.subject in SECOND] if is_row(each) else found
    net.note = lambda each: note(each) if is_row(each) else None
    return found


# ── rows that may be shed ────────────────────────────────────────────────────────────────────

SHEDDABLE = frozenset({Priority.NON_CRITICAL})


def urgent(subjects, first, priorities):
    count = len(subjects)
    data = [b"%d." % row for row in range(first, first + count)]
    ids = pa.array([b"t-%d" % row for row in range(first, first + count)], pa.binary())
    found = block(subjects, first, data)
    return replace(found, priorities=pa.array(priorities, pa.int8()), ids=ids)


def shedding(monkeypatch, pushed_back=True, **options):
    """A server that may have pushed back, and rows that may all be shed."""
    monkeypatch.setattr(Net, "max_payload", 1 << 20, raising=False)
    blocks = [urgent("abcd" * 25, first, [Priority.NON_CRITICAL] * 100) for first in (0, 100, 200)]
    settings: dict[str, object] = {
        **FIXED,
        "max_in_flight": 7,
        "publish_timeout_s": 20.0,
        "rules": rules_of(queue_size=20, sheddable=SHEDDABLE, overload_window_s=1e9),
    }
    world = World(monkeypatch, blocks, random.Random(1), **(settings | options))
    found = elsewhere(monkeypatch, world)
    for place in (0, 1) if pushed_back else ():
        world.publisher.admission.overload.pushed_back(place, 100.0)
    return world, found
