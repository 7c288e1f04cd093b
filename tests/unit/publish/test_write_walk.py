"""
A whole write amid everything at once: pauses and rates by operators, overload, refusals for a while
and for good, rows that an earlier attempt has stored, a writer that uses a whole core, and a
connection that breaks: by chance, amid a full wire, behind the last row.

Drawn are the options of a write, its rows and what happens to it. Where each row is in the end is
known.
"""

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_jetstream.errors import NotConnectedError
from pyspark_jetstream.outbox.messages import Messages
from pyspark_jetstream.outbox.priority import Priority
from pyspark_jetstream.publish import sender

from ...kits.model import Sent, error
from ...kits.options import rules_of
from ...kits.seeds import examples
from ...kits.world import SUBJECTS, World, block, command

LOW, MIDDLE = Priority.NON_CRITICAL, Priority.NORMAL
METRICS = "metrics"
ENOUGH_S = 60.0
"""No write takes a half of it: what is stuck, if only for a while, shows."""
TOO_LARGE = error(400, 10054, "message size\r\nexceeds maximum allowed")

MANY = st.integers(200, 700)
COMMAND = st.tuples(
    st.sampled_from([0.0, 0.001, 0.05, 0.5]),
    st.sampled_from([*SUBJECTS, *SUBJECTS, ">", "*"]),
    st.sampled_from([0.0, 0.02, 0.3, 3.0]),
    st.sampled_from([0, 0, 1, 2, 4]),
)
COMMANDS = st.lists(COMMAND) | st.lists(COMMAND, min_size=20)
"""Of operators: how long after the one before, to which filter, for how long and why."""


class Write:
    """One write as it was drawn, and its world."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, draw: Callable[[Any], Any]) -> None:
        self.draw, self.rng = draw, random.Random(draw(st.integers(0, 999)))
        some = self.some
        self.total = draw(st.integers(1, 60) | MANY | MANY)
        self.policy = some("block", "drop", "dead-letter")
        self.sheddable: frozenset[Priority] = frozenset()
        kinds = list(Priority)
        if self.policy != "block":
            self.sheddable = frozenset(some([LOW], [LOW, MIDDLE]))
        queue_timeout_s = 1e9
        if len(self.sheddable) == 2 and some(False, True):  # then no row may fail of it
            kinds, queue_timeout_s = [LOW, MIDDLE], some(5.0, 0.5)
        is_plain = self.policy == "block" and some(True, False)
        self.priorities = [Priority.NORMAL] * self.total
        if not is_plain:
            self.priorities = self.rng.choices(kinds, k=self.total)
        self.rejects = some(False, True)
        self.never = self._rows() if self.rejects else set()
        """Rows that the server never stores, or that can be no messages."""
        self.known = self._rows() - self.never if some(False, True) else set()
        """Rows that an earlier attempt has stored."""
        self.faults = {row for row in self.never if self.rng.random() < 0.5}
        """Those that can be no messages."""
        self.letters = self.rejects or self.policy == "dead-letter"
        self.window_s = some(1e9, 10.0, 1.0)
        monkeypatch.setattr(sender, "_CHUNK_BYTES", some(1 << 19, 100))
        self.world = World(
            monkeypatch,
            list(self._blocks(is_plain)),
            self.rng,
            is_checked=bool(self.known),
            min_in_flight=some(4096, 1),
            max_in_flight=some(64, 7, 1) if self.sheddable else some(4096, 64, 7, 1),
            max_in_flight_bytes=some(1 << 30, 20_000, 20_000, 3_000),
            ack_timeout_s=2.0,
            metrics_subject=some(None, METRICS),
            dead_letter_subject="dlq.{subject}" if self.letters else None,
            drops=self.policy == "drop",
            rejects=self.rejects,
            rules=rules_of(
                queue_size=some(10_000, 20, 20),
                queue_timeout_s=queue_timeout_s,
                throttle_max_wait_s=1e9,
                sheddable=self.sheddable,
                overload_window_s=self.window_s,
            ),
        )
        self.dead = self.world.elsewhere
        if self.known:
            known = pa.array(sorted(self.known), pa.int64())
            self.world.stored_before = lambda each: pc.is_in(each.rows, known)
        for stream in self.world.net.streams:
            stream.refuse = {b"%d." % row: TOO_LARGE for row in self.never - self.faults}
        self._disturb()
        self._surround(monkeypatch)

    def some(self, *options: Any) -> Any:
        return self.draw(st.sampled_from(options))

    def _rows(self) -> set[int]:
        count = self.some(1, 5, self.total // 10, self.total // 2)
        return set(self.rng.sample(range(self.total), k=min(count, self.total)))

    def _blocks(self, is_plain: bool) -> list[Messages]:
        rng, found, first = self.rng, [], 0
        chars, largest = self.some("ab", "abab", SUBJECTS, SUBJECTS), self.some(60, 600)
        counts = cycle(self.draw(st.lists(st.sampled_from([400, 100, 30, 1]), min_size=1)))
        while first < self.total:
            rows = range(first, min(first + next(counts), self.total))
            sizes = [rng.randrange(largest) * (row not in self.never) for row in rows]
            data = [b"%d.%b" % (row, b"." * size) for row, size in zip(rows, sizes, strict=True)]
            made = block("".join(rng.choices(chars, k=len(rows))), first, data)
            ids = pa.array([b"t-%d" % row for row in rows], pa.binary())
            made = replace(made, ids=ids)
            if not is_plain:
                priorities = pa.array([self.priorities[row] for row in rows], pa.int8())
                made = replace(made, priorities=priorities)
            if not self.faults.isdisjoint(rows):
                why = pa.array(["why" if row in self.faults else None for row in rows], pa.string())
                made = replace(made, faults=why)
            found.append(made)
            first = rows.stop
        return found

    def _disturb(self) -> None:
        """What network, servers and operators do."""
        some, net = self.some, self.world.net
        net.chaos = some(0.0, 1.0, 5.0, 5.0)
        net.drops_plain = some(False, False, True)
        at = self.began = self.world.clock.now
        if self.policy != "block":
            for place in some((), (0,), (0, 1), (0, 1)):
                self.world.publisher.admission.overload.pushed_back(place, at)
        self.dead.full_until = at + some(0.0, 0.0, 3.0)
        for number, (wait_s, *said) in enumerate(self.draw(COMMANDS)):
            at += wait_s
            net.commands.append((at, command(number, *said)))

    def _surround(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What the server takes, and one moment at which the network breaks."""
        net, sent = self.world.net, 0
        net.max_payload, breaks_at = self.some(1 << 20, 10), self.some(0, 10, 100)

        def arrives(each: Sent) -> bool:
            nonlocal sent
            sent += 1
            if sent == breaks_at:
                net.cut()
            return not net.is_cut

        net.on_sent = arrives
        if self.some(False, True):
            monkeypatch.setattr(net, "unsubscribe", _cut)


def _cut(sid: int) -> None:
    raise NotConnectedError("model", "cut")


@examples(25)
@given(st.data())
def test_every_row_is_in_one_place(caplog, data):
    """
    I1, I2, I4: each row is in its stream once, or a dead letter once, or dropped, and in one of
    them; what the server never stores is a dead letter, other rows leave only if they may be shed;
    what an earlier attempt has stored goes nowhere. Stored rows of a subject are in order where no
    plain publish was dropped between others. Nothing goes to a paused subject behind the receipt;
    when a row was first sent is not forgotten; the loop never spins and nothing is stuck, whatever
    is on the wire. All is counted.
    A23, A27: drops are said with their number, once in `overloadWindow`; reports that the server
    would not take are not sent.
    """
    caplog.clear()
    with pytest.MonkeyPatch.context() as monkeypatch:
        write = Write(monkeypatch, data.draw)
        counts = write.world.run()
    stored = write.world.rows()
    apart = [each for each in write.dead.messages if each.subject != METRICS]
    letters = [int(each.data.split(b".")[0]) for each in apart]
    gone = set(range(write.total)) - write.known - set(stored)
    dropped = gone - set(letters)
    shed = dropped | set(letters) - write.never

    assert len(set(stored)) == len(stored) == counts.acked
    assert not set(stored) & write.known
    assert write.never <= gone
    assert {write.priorities[row] for row in shed} <= write.sheddable
    assert len(set(letters)) == len(letters) == counts.dead_letters
    assert set(letters) <= gone
    assert len(dropped) == counts.dropped
    if write.policy == "drop":
        assert write.faults <= set(letters) <= write.never
    else:
        assert not dropped
    said = [int(each.msg.split()[1]) for each in caplog.records if "dropped" in each.msg]
    took_s = write.world.clock.now - write.began
    assert took_s < ENOUGH_S
    assert said == [len(dropped)] * bool(dropped)
    reported = any(each.subject == METRICS for each in write.dead.heard)
    assert write.world.net.max_payload > 10 or not reported
    counted = write.world.telemetry.snapshot()
    for priority in Priority if write.policy != "drop" else ():
        named = {"priority": priority.label}
        left = counted.total("jetstream_publish_rejected_total", **named)
        assert left == counted.total("jetstream_publish_dead_letter_total", **named)
    if not write.world.net.drops_plain:
        for subject in SUBJECTS:
            rows = write.world.rows(subject)
            assert rows == sorted(rows)
