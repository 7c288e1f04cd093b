"""
A whole write against a model of the server: the publisher under pauses, refusals and broken
connections, every turn of it, on a clock that is a number.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_jetstream.client import wire
from pyspark_jetstream.client.peer import Permissions
from pyspark_jetstream.errors import NotConnectedError
from pyspark_jetstream.outbox.messages import Messages
from pyspark_jetstream.outbox.targets import Target
from pyspark_jetstream.outbox.throttling.pausetable import PauseTable
from pyspark_jetstream.outbox.throttling.throttleprotocol import Reason, ThrottleProducer
from pyspark_jetstream.publish import pauses
from pyspark_jetstream.publish.context import WriteContext
from pyspark_jetstream.publish.publisher import Publisher
from pyspark_jetstream.publish.telemetry import Origin, Telemetry

from .lanes import INBOX, messages
from .messages import msg
from .model import Line, ModelStream, Reply, Sent, error, parse
from .options import changed, connection_of, sink_of, targets_of
from .shared import Clock

CONTROL = "spark.jetstream.throttle"
SUBJECTS = "abcd"

SECOND = "cd"
"""Subjects of the second stream."""

STREAMS = {
    subjects[0]: Target.parse({"name": subjects, "subjects": [*subjects]})
    for subjects in ("ab", SECOND)
}


def is_row(each):
    """Whether it goes to a row's own subject."""
    return each.subject in SUBJECTS


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


class Net(Line):
    """Client and connection, the network, the server's streams and the operators behind it."""

    def __init__(self, clock, rng, supply):
        super().__init__((), rng)
        self.streams = ModelStream(), ModelStream()
        self.elsewhere = ModelStream()
        """Where goes what does not go to a row's own subject: dead letters and metrics."""
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
        self._clock, self._supply = clock, supply
        self._up: list[Sent] = []
        self._down: list[Reply] = []
        self._said: dict[str, ThrottleProducer] = {}
        self.is_cut = False
        self._idle = 0

    # ── the connection ───────────────────────────────────────────────────────────────────────

    def drop(self):
        super().drop()
        self.is_cut = False

    def new_inbox(self):
        return INBOX

    def subscribe(self, subject, needed=True):
        self.check_up()
        return super().subscribe(subject)

    def check(self, now, silence_s):
        """It is there, even where it answers nothing."""

    def send(self, data, timeout_s=30.0):
        self.check_up()
        for each in parse(bytes(data)):
            if each.subject.startswith("operator."):
                self.receipt(each)
                continue
            if is_row(each):
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
            self._down.append(Reply(reply, wire.NO_RESPONDERS, b""))
        else:
            self.send(wire.pub(subject, data))
        return True

    @property
    def permissions(self):
        return Permissions(INBOX)

    def poll(self):
        self.check_up()
        self._step()
        came = bool(self.coming)
        self.take(len(self.coming))
        return came

    def fill(self, deadline, need=1):
        self.check_up()
        return False

    def wait(self, deadline, other=-1):
        self.turns += 1
        assert self.turns < 200_000, "hangs"
        now = self._clock.now
        self._idle = self._idle + 1 if deadline <= now else 0
        assert self._idle < 20, "spins"
        if self._up or self._down:
            self._clock.now = max(now, min(deadline, now + self.rng.choice([0.0005, 0.02])))
            return
        at = min([deadline, self._supply.due, *(at for at, _ in self.commands[:1])])
        self._clock.now = max(now, at)

    def check_up(self):
        """Raises where the connection is cut."""
        if self.is_cut:
            raise NotConnectedError("model", "cut")

    # ── what happens ─────────────────────────────────────────────────────────────────────────

    def _step(self):
        rng, now = self.rng, self._clock.now
        for stream in (*self.streams, self.elsewhere):
            stream.now = now
        while self.commands and self.commands[0][0] <= now:
            self._say(self.commands.pop(0)[1])
        event = rng.random() / self.chaos if self.chaos else 1.0
        if event < 0.004:
            del self._up[rng.randrange(len(self._up) + 1) :]
            for each in self._up:
                self.stream_of(each).publish(each)
            self.cut()
            return
        if event < 0.005:
            self._down = []
        for _ in range(rng.choice([0, 3, 40, 400])):
            if not self._up:
                break
            self._down += self._answer(self._up.pop(0))
        count = rng.choice([0, 3, 40, 400])
        sid = self.subscriptions.get(f"{INBOX}.>")
        if sid is not None:
            self.coming += b"".join(each.frame(sid) for each in self._down[:count])
        del self._down[:count]

    def stream_of(self, each):
        """The stream that takes it."""
        return self.streams[each.subject in SECOND] if is_row(each) else self.elsewhere

    def cut(self):
        """The connection breaks; what is on its way is lost."""
        self._up, self._down, self.is_cut = [], [], True

    def _answer(self, each):
        stream = self.stream_of(each)
        if self.chaos and self.drops_plain:
            if self.rng.random() < 0.002 * self.chaos:
                return stream.refused(each, *self.rng.choice([(429, 10167), (503, 0), (0, 10023)]))
            if self.rng.random() < 0.002 * self.chaos and each.data:
                return stream.fails(each, error(503, 10077))
        return stream.publish(each)

    def _say(self, command):
        reply = f"operator.{len(self._said)}"
        self._said[reply] = command
        sid = self.subscriptions.get(CONTROL)
        if sid is not None:
            self.coming += msg(CONTROL.encode(), reply.encode(), command.encode(), sid)

    def receipt(self, each):
        """The writer says that it has heard a command."""
        self.oracle.command(self._said[each.subject], self._clock.now)

    def note(self, each):
        """Of what is sent, which row may be stored from now on."""
        now, row = self._clock.now, int(each.data.split(b".")[0])
        pause = self.oracle.matcher(now)(each.subject)
        assert not pause, f"row {row} to {each.subject} sent at {now} within {pause}"
        self.first_sent.setdefault(row, now)


class World:
    """One write."""

    def __init__(self, monkeypatch, blocks, rng, is_checked=False, **options):
        self.clock = Clock()
        monkeypatch.setattr(pauses, "_PATIENCE", {})
        self.supply = Supply(self.clock, rng, blocks)
        self.net = Net(self.clock, rng, self.supply)
        self.stream, self.elsewhere = self.net.streams[0], self.net.elsewhere
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
        self._has_elsewhere = {"dead_letter_subject", "metrics_subject"} & options.keys()
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
        assert self.elsewhere.heard == [] or self._has_elsewhere
        return publisher.finish()

    def rows(self, subject=None):
        """The numbers of what is stored, in order."""
        return [
            int(each.data.split(b".")[0])
            for stream in self.net.streams
            for each in stream.messages
            if subject in (None, each.subject)
        ]


def block(subjects, first, data=None, ids=True):
    found = messages(list(subjects), data, first=first, ids=ids)
    targets = [int(subject in SECOND) for subject in found.distinct]
    return replace(found, targets=pa.array(targets, pa.int32()))


def command(number, subject, pause_s, reason=0):
    """A pause."""
    return ThrottleProducer(number, Reason(reason), round(pause_s, 3), subject)
