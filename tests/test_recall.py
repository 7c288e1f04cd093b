"""
The publisher under pauses, refusals and broken connections, against a model of the server: a whole
write, every turn of it, on a clock that is a number.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest

from pyspark_jetstream import publisher, throttle, wire
from pyspark_jetstream.admission import Admission, Load, Rules
from pyspark_jetstream.errors import NotConnectedError, PublishTimeoutError
from pyspark_jetstream.fastlane import FastLane
from pyspark_jetstream.lanes import AsyncLane
from pyspark_jetstream.limits import FixedLimit, Limits
from pyspark_jetstream.messages import Messages
from pyspark_jetstream.meters import Meters
from pyspark_jetstream.options import ConnectionOptions, SinkOptions
from pyspark_jetstream.priority import Priority
from pyspark_jetstream.targets import Target, Targets
from pyspark_jetstream.throttle import Source, Throttle
from pyspark_jetstream.throttlewire import Reason, ThrottleProducer

from . import test_atomic, test_fastlane
from .lanekit import INBOX, PREFIX, ModelServer, Reply, Sent, error, messages, parse
from .pressurekit import SEED

CONTROL = "spark.jetstream.throttle"
SUBJECTS = "abcd"
SECOND = "cd"
"""Subjects of the second stream."""

STREAMS = {
    subjects[0]: Target.parse(
        {"name": subjects, "subjects": [*subjects], "allow_batched": True, "allow_atomic": True}
    )
    for subjects in ("ab", SECOND)
}


class Clock:
    """Stands for the module `time`."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Supply:
    """Blocks that are there some time after they were asked for."""

    def __init__(self, clock: Clock, rng: random.Random, blocks: list[Messages]) -> None:
        self.asked = self.ended = False
        self.due = math.inf
        self._clock, self._rng, self._blocks = clock, rng, list(blocks)

    def fileno(self) -> int:
        return -1

    def ask(self) -> None:
        self.asked = True
        self.due = self._clock.now + self._rng.choice([0.0, 0.0, 0.05, 2.0])

    def get(self) -> Messages | None:
        if not self.asked or self._clock.now < self.due:
            return None
        self.asked, self.due = False, math.inf
        self.ended = not self._blocks
        return self._blocks.pop(0) if self._blocks else None


class Net:
    """Client and connection, the network, the server and the operators behind it."""

    def __init__(
        self, clock: Clock, rng: random.Random, server: ModelServer, supply: Supply
    ) -> None:
        self.connection = self
        self.buffer, self.pos = b"", 0
        self.servers = server, type(server)(largest_batch=server.largest_batch)
        """One for each stream."""
        self.oracle = Throttle(7)
        """What the writer has confirmed."""
        self.first_sent: dict[int, float] = {}
        """Since when a row may be stored, by its number."""
        self.commands: list[tuple[float, ThrottleProducer]] = []
        """When which is to be said."""
        self.chaos = 1.0
        """How often things break; 0 for never."""
        self.drops_plain = False
        self.on_sent: Callable[[Sent], bool] = lambda each: True
        """Whether the network takes this."""
        self.turns = 0
        self._clock, self._rng, self._supply = clock, rng, supply
        self._up: list[Sent] = []
        self._down: list[tuple[str, Reply]] = []  # to which lane
        self._frames: list[bytes] = []
        self._subscriptions: dict[str, int] = {}
        self._sid = 0
        self._said: dict[str, ThrottleProducer] = {}
        self._staged: dict[str, list[int]] = {}
        self._dead = False
        self._idle = 0

    # ── the connection ───────────────────────────────────────────────────────────────────────

    def drop(self) -> None:
        self.buffer, self.pos = b"", 0
        self._frames.clear()
        self._subscriptions.clear()
        self._dead = False

    def new_inbox(self) -> str:
        return INBOX

    def subscribe(self, subject: str, needed: bool = True) -> int:
        self._check()
        self._sid += 1
        self._subscriptions[subject] = self._sid
        return self._sid

    def unsubscribe(self, sid: int) -> None:
        pass

    def send(self, data: bytes | memoryview, timeout_s: float = 30.0) -> None:
        self._check()
        for each in parse(bytes(data)):
            if each.subject.startswith("operator."):
                self._receipt(each)
                continue
            self._note(each)
            if self.on_sent(each):
                self._up.append(each)

    def answer(self, reply: bytes, data: bytes, timeout_s: float = 30.0) -> None:
        self.send(wire.pub(reply.decode(), data))

    def poll(self) -> bool:
        self._check()
        self._step()
        if not self._frames:
            return False
        self.buffer = self.buffer[self.pos :] + b"".join(self._frames)
        self.pos = 0
        self._frames.clear()
        return True

    def next_frame(self, deadline: float) -> wire.Frame | None:
        self._check()
        found, where = wire.next_frame(self.buffer, self.pos)
        if found is None:
            return None
        self.pos = where
        assert isinstance(found, wire.Frame)
        return found

    def wait(self, deadline: float, other: int = -1) -> None:
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

    def _check(self) -> None:
        if self._dead:
            raise NotConnectedError("model", "cut")

    # ── what happens ─────────────────────────────────────────────────────────────────────────

    def _step(self) -> None:
        rng, now = self._rng, self._clock.now
        for server in self.servers:
            server.now = now
        while self.commands and self.commands[0][0] <= now:
            self._say(self.commands.pop(0)[1])
        event = rng.random() / self.chaos if self.chaos else 1.0
        if event < 0.004:
            del self._up[rng.randrange(len(self._up) + 1) :]
            for each in self._up:
                self._server(each).publish(each)
            self._up, self._down, self._dead = [], [], True
            if event < 0.002:
                self._forget()
            return
        if event < 0.006:
            self._forget()
        elif event < 0.007:
            self._down = []
        for _ in range(rng.choice([0, 3, 40, 400])):
            if not self._up:
                break
            sent = self._up.pop(0)
            self._down += [(sent.reply.split(".")[2], each) for each in self._take(sent)]
        count = rng.choice([0, 3, 40, 400])
        sid = self._subscriptions.get(f"{INBOX}.>")
        if sid is not None:
            self._frames += [_frame(lane, each, sid) for lane, each in self._down[:count]]
        del self._down[:count]

    def _server(self, each: Sent) -> ModelServer:
        return self.servers[each.subject in SECOND]

    def _forget(self) -> None:
        for server in self.servers:
            server.forget()

    def _take(self, each: Sent) -> list[Reply]:
        server = self._server(each)
        batched = each.reply.endswith("$FI") or "Nats-Batch-Id" in each.headers
        if self.chaos and (self.drops_plain or batched):
            if self._rng.random() < 0.002 * self.chaos:
                code, err_code = self._rng.choice([(429, 10167), (503, 0), (0, 10023)])
                return server.refused(each, code, err_code)
            if self._rng.random() < 0.002 * self.chaos and each.data:
                server.refuse[each.data] = error(503, 10077)
        found = server.publish(each)
        server.refuse.clear()
        if "Nats-Batch-Commit" in each.headers and found and b'"error"' in found[0].data:
            # Nothing of it is stored: of a batch that is halved, one half starts anew.
            self.first_sent.clear()
        return found

    def _say(self, command: ThrottleProducer) -> None:
        reply = f"operator.{len(self._said)}"
        self._said[reply] = command
        data = command.encode()
        sid = self._subscriptions.get(CONTROL)
        if sid is not None:
            head = f"MSG {CONTROL} {sid} {reply} {len(data)}\r\n"
            self._frames.append(head.encode() + data + b"\r\n")

    def _receipt(self, each: Sent) -> None:
        self.oracle.command(self._said[each.subject], self._clock.now)

    def _note(self, each: Sent) -> None:
        if each.reply.endswith((".3.$FI", ".4.$FI")):
            return  # no row
        now, row = self._clock.now, int(each.data.split(b".")[0])
        pause = self.oracle.state(each.subject, now)
        assert pause is None, f"row {row} to {each.subject} sent at {now} within {pause}"
        name = each.headers.get("Nats-Batch-Id")
        if name is None:
            self.first_sent.setdefault(row, now)
            return
        self._staged.setdefault(name, []).append(row)
        if "Nats-Batch-Commit" in each.headers:
            for one in self._staged.pop(name):
                self.first_sent.setdefault(one, now)


def _frame(lane: str, reply: Reply, sid: int) -> bytes:
    subject = f"{INBOX}.{lane}.{reply.token.decode()}"
    if not reply.status:
        return f"MSG {subject} {sid} {len(reply.data)}\r\n".encode() + reply.data + b"\r\n"
    head = f"NATS/1.0 {reply.status}\r\n\r\n".encode()
    sizes = f"{len(head)} {len(head) + len(reply.data)}"
    return f"HMSG {subject} {sid} {sizes}\r\n".encode() + head + reply.data + b"\r\n"


class World:
    """One write."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        blocks: list[Messages],
        rng: random.Random,
        server: ModelServer | None = None,
        **options: object,
    ) -> None:
        self.clock = Clock()
        monkeypatch.setattr(publisher, "time", self.clock)
        monkeypatch.setattr(publisher, "_LIMITS", Limits())
        self.server = server or ModelServer()
        self.supply = Supply(self.clock, rng, blocks)
        self.net = Net(self.clock, rng, self.server, self.supply)
        targets = Targets(STREAMS.get)
        targets.of(pa.array([*STREAMS]))
        sink = replace(
            SinkOptions(ConnectionOptions(("nats://model",)), publish_timeout_s=1e9), **options
        )
        self.publisher = publisher._Publisher(
            self.net, sink, targets, lambda: None, None, publisher.Origin(7), Meters()
        )
        give_back = self.publisher._admission.give_back

        def checked(back: Messages, now: float) -> None:
            sent = [None] * len(back) if back.sent is None else back.sent.to_pylist()
            for row, at in zip(back.rows.to_pylist(), sent, strict=True):
                first = self.net.first_sent.get(row)
                assert first is None or (at is not None and at <= first), f"row {row} was sent"
            give_back(back, now)

        monkeypatch.setattr(self.publisher._admission, "give_back", checked)

    def run(self) -> publisher.Counts:
        return self.publisher.run(self.supply)

    def rows(self, subject: str | None = None) -> list[int]:
        """The numbers of what is stored, in order."""
        return [
            int(each.data.split(b".")[0])
            for server in self.net.servers
            for each in server.stored
            if subject in (None, each.subject)
        ]


def block(subjects: str, first: int, data: list[bytes] | None = None, ids: bool = True) -> Messages:
    found = messages(list(subjects), data, first=first, ids=ids)
    targets = [int(subject in SECOND) for subject in found.distinct]
    return replace(found, targets=pa.array(targets, pa.int32()))


def command(number: int, subject: str, pause_s: float, reason: int = 0) -> ThrottleProducer:
    return ThrottleProducer(number, Reason(reason), round(pause_s, 3), subject)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("mode", ["async", "fast", "atomic"])
def test_random_walk(monkeypatch, mode, seed):
    """
    Whatever operators, server and network do, every row is stored once; in order per subject where
    no plain publish was dropped between others; nothing goes to a paused subject behind the
    receipt; when a row was first sent is not forgotten; the loop never spins.
    """
    seed += SEED
    rng = random.Random(f"{mode} {seed}")
    total, blocks = rng.randrange(1, 700), []
    first = 0
    chars = rng.choice([SUBJECTS, "abab", "ab"])
    urgent = rng.random() < 0.3
    while first < total:
        count = min(rng.choice([1, 30, 400]), total - first)
        data = [b"%d" % row + b"." * rng.randrange(60) for row in range(first, first + count)]
        made = block("".join(rng.choices(chars, k=count)), first, data)
        if urgent:
            priorities = pa.array(rng.choices(list(Priority), k=count), pa.int8())
            made = replace(made, priorities=priorities)
        blocks.append(made)
        first += count
    world = World(
        monkeypatch,
        blocks,
        rng,
        ModelServer(largest_batch=rng.choice([1000, 1000, 20])),
        publish_mode=mode,
        limiter=rng.choice(["fixed", "gradient"]),
        max_in_flight=rng.choice([1, 7, 64, 4096]),
        max_in_flight_bytes=rng.choice([3_000, 30_000, 1 << 30]),
        ack_timeout_s=2.0,
        rules=Rules(queue_size=rng.choice([20, "auto"]), throttle_max_wait_s=1e9),
    )
    world.net.chaos = rng.choice([0.0, 1.0, 5.0])
    world.net.drops_plain = seed % 3 == 0
    at = world.clock.now
    for number in range(rng.choice([0, 5, 60])):
        at += rng.choice([0.0, 0.001, 0.05, 0.5])
        filter = rng.choice([*SUBJECTS, *SUBJECTS, ">", "*"])
        pause_s = rng.choice([0.0, 0.02, 0.3, 3.0])
        reason = rng.choice([0, 0, 1, 2, 4])
        world.net.commands.append((at, command(number, filter, pause_s, reason)))
    counts = world.run()

    assert counts.offered == counts.acked == total, f"seed {seed}"
    assert sorted(world.rows()) == list(range(total)), f"seed {seed}"
    if not world.net.drops_plain:
        for subject in SUBJECTS:
            rows = world.rows(subject)
            assert rows == sorted(rows), f"seed {seed}"


# ── what the walks found ─────────────────────────────────────────────────────────────────────


def only_a(subject: str) -> bool:
    return subject == "a"


def numbers(parts: list[Messages]) -> list[int]:
    return sorted(row for part in parts for row in part.rows.to_pylist())


def cut_fast_batch() -> tuple[FastLane, ModelServer, Sent]:
    """A batch of which ten rows are stored, and the commit without a row that is to end it."""
    one, server = test_fastlane.lane(), ModelServer()
    one.offer(block("ab" * 300, 0))
    test_fastlane.hear(one, server.publish(test_fastlane.sent(one)[0]))
    for each in parse(bytes(one.ready(0.0, 1000) or b"")):
        test_fastlane.hear(one, server.publish(each))
    one.recall(only_a)
    (commit,) = test_fastlane.sent(one)
    return one, server, commit


@pytest.mark.parametrize("how", ["cut", "429", "lost"])
def test_a_commit_without_a_row_that_is_lost_goes_again(how):
    """
    A ping that finds the batch open says that the commit did not arrive; it is not waited for.
    """
    one, server, commit = cut_fast_batch()
    if how == "cut":
        one.broken()
    elif how == "429":
        test_fastlane.hear(one, server.refused(commit, 429, 10167))
    for tick in range(100):
        server.now = tick / 10
        test_fastlane.exchange(one, server, tick / 10)
        one.expire(tick / 10)

    assert not one.busy
    assert one.acked == len(server.stored) > 1
    assert one.retries == 0


def test_rows_of_a_lost_fast_batch_wait_while_paused():
    """
    B13: what a batch leaves undecided is sent again, so it waits when its subject is paused; the
    others behind it keep their order.
    """
    one, server = test_fastlane.lane(), ModelServer()
    one.offer(block("ab" * 10, 0))
    test_fastlane.hear(one, server.publish(test_fastlane.sent(one)[0]))
    test_fastlane.sent(one)
    one.recall(only_a)
    server.forget()
    one.broken()
    test_fastlane.hear(one, server.publish(test_fastlane.sent(one)[0]))  # the ping
    back = one.recall(only_a, unsent=False)

    assert numbers(back) == list(range(20))
    assert all(part.was_sent for part in back)
    assert test_fastlane.sent(one) == []


def test_rows_of_an_atomic_batch_with_duplicates_wait_while_paused():
    """
    B13: likewise where a batch is refused because some of its rows are stored.
    """
    one, server = test_atomic.lane(), ModelServer()
    server.ids.add("t-1")
    one.offer(block("ab", 0))
    found = test_atomic.sent(one)
    one.recall(only_a)
    for each in found:
        test_atomic.hear(one, server.publish(each))
    back = one.recall(only_a, unsent=False)

    assert numbers(back) == [0, 1]
    assert all(part.was_sent for part in back)
    assert test_atomic.sent(one) == []


def test_nothing_overtakes_an_atomic_batch_that_is_given_back():
    """
    Rows of free subjects go back with the batch; so must those that were offered behind it.
    """
    one, server = test_atomic.lane(), ModelServer()
    one.offer(block("ab", 0))
    found = test_atomic.sent(one)
    one.recall(only_a)
    one.offer(block("bb", 2))
    test_atomic.hear(one, server.refused(found[-1], 0, 10023))
    back = one.recall(only_a, unsent=False)

    assert numbers(back) == [0, 1, 2, 3]
    assert not one.busy


def test_a_batch_of_other_subjects_stays():
    """
    That rows of the same block go to a paused subject is no reason to take a batch apart.
    """
    one, server = test_atomic.lane(), ModelServer()
    one.offer(block("aabb", 0).slice(2, 2))
    found = test_atomic.sent(one)
    test_atomic.hear(one, server.refused(found[-1], 0, 10023))

    assert one.recall(only_a, unsent=False) == []
    assert len(test_atomic.sent(one, 9.0)) == 2


def test_a_batch_taken_back_in_its_second_attempt_may_be_stored():
    """
    The first attempt had its commit: when that was sent is not forgotten.
    """
    one = test_atomic.lane(ack=2.0)
    one.offer(block("ab" * 3, 0))
    test_atomic.sent(one, 1.0)
    one.expire(3.0)
    one.ready(4.0, 1)
    (back,) = one.recall(only_a)

    assert back.sent is not None
    assert back.sent.to_pylist() == [1.0] * 6


def test_a_row_that_is_stored_has_no_deadline():
    """
    One that came back and was stored does not shorten the time for the next connection.
    """
    one = AsyncLane(PREFIX, FixedLimit(8), 1 << 30, 5.0, 120.0)
    one.offer(replace(block("a", 0), sent=pa.array([0.0])))
    one.ready(100.0, 1 << 20)
    before = one.give_up_at
    one.stored([0], 100.1)

    assert (before, one.give_up_at) == (120.0, math.inf)


@pytest.mark.parametrize("source", ["pause", "queue"])
def test_a_short_pause_by_the_server_is_not_the_end_of_rows_that_waited(source):
    """
    Rows that waited longer than `publishTimeout`, for an operator or for room, and were never sent
    are not given up because the server says 429 for a moment.
    """
    pauses = Throttle()
    one = Admission(Rules(), pauses)
    one.offer(block("a", 0), 0.0, Load(0, 64))
    if source == "pause":
        pauses.command(command(1, "a", 150.0), 0.0)
    pauses.refused(10023, "b", (), 1.0, 149.5)
    one.expire(149.6)

    assert one.waiting == 1


def test_a_row_the_server_keeps_refusing_is_given_up():
    """
    One that was sent is, after `publishTimeout`.
    """
    pauses = Throttle()
    one = Admission(Rules(publish_timeout_s=10.0), pauses)
    one.offer(block("a", 0), 0.0, Load(0, 64))
    taken = one.take(1, 5.0)
    assert taken is not None
    one.give_back(replace(taken, sent=pa.array([5.0])), 5.0)
    pauses.refused(10077, "a", (), 1.0, 14.5)
    one.expire(14.6)

    with pytest.raises(PublishTimeoutError, match=r"waited 10\.1s"):
        one.expire(15.1)


def test_an_operators_pause_counts_whoever_else_pauses_longer():
    """
    B13: a refusal that holds the whole writer for a second hides no pause that ends before.
    """
    pauses = Throttle()
    pauses.command(command(1, "a", 0.5), 0.0)
    pauses.refused(10023, "b", (), 1.0, 0.0)
    longest = pauses.state("a", 0.1)
    operators = pauses.state("a", 0.1, (Source.OPERATOR,))

    assert longest is not None and longest.source is Source.SERVER
    assert operators is not None and operators.until == 0.5


class Full(ModelServer):
    """One that is at its limit for three seconds."""

    def publish(self, sent: Sent) -> list[Reply]:
        if self.now >= 103:
            return super().publish(sent)
        self.heard.append(sent)
        return self._say(sent, stream="S", seq=0, error=error(503, 10077))


@pytest.mark.parametrize("most", [2, 10_000])
def test_subjects_at_their_limit_are_not_asked_all_the_time(monkeypatch, most):
    """
    Each waits longer and longer, also when there are more than the throttle has room for.
    """
    monkeypatch.setattr(throttle, "_MOST_WINDOWS", most)
    world = World(
        monkeypatch, [block("abcd" * 4, 0)], random.Random(1), Full(), publish_mode="async"
    )
    world.net.chaos = 0.0
    counts = world.run()

    assert counts.acked == 16
    assert len(world.server.heard) < 16 * 10


@pytest.mark.parametrize("mode", ["async", "fast", "atomic"])
def test_a_word_without_a_pause_counts_until_the_next_puback(monkeypatch, mode):
    """
    B6: then it explains nothing any more.
    """
    world = World(monkeypatch, [block("ab", 0)], random.Random(1), publish_mode=mode)
    world.net.chaos = 0.0
    world.publisher._throttle.command(command(1, ">", 0.0, 2), 0.0)
    before = world.publisher._throttle.informed
    world.run()

    assert (before, world.publisher._throttle.informed) == (True, False)
