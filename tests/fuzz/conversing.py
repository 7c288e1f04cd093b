"""
Lanes under hostile answers: random walks of `publish`'s state machines, against what the reference
accepts.

A case is the seed of one walk. A model of the server answers what a lane sends; on their way back
answers are lost, doubled, put in another order, cut, changed, said of other rows or batches, or
made up, also long after the batch they are of. What holds:

* a row counts as stored only if an answer that the reference accepts has said so of it;
* no row counts twice, and at the end each is stored, rejected, or the lane has failed with an error
  of ours;
* once answers are sound again the lane comes to its end in a bounded number of turns.
"""

from __future__ import annotations

import json
import random
from typing import Any, Final

from pyspark_jetstream.publish.lanes.lane import Lane

from ..kits.lanes import (
    MANY,
    PREFIX,
    FixedLimit,
    ModelServer,
    Reply,
    Sent,
    error,
    messages,
    parse,
    terms,
)
from . import referenceacks
from .cases import TYPED, Case, Fault

_ROWS: Final = 200
_HOSTILE: Final = 150
"""Turns with hostile answers at the most."""

_TURNS: Final = 3000
"""Turns until the end once answers are sound."""

_ERRORS: Final = (10077, 10167, 10208, 10176, 10199, 10201, 10158, 10071, 10023, 1, 0)


def case(rng: random.Random) -> Case:
    """One walk."""
    return Case("lanes", b"%x" % rng.randrange(1 << 48))


def check(case: Case) -> int:
    """Walks; how many turns and answers that were."""
    return _Walk(random.Random(case.stream.hex())).run()


class _Allowed:
    """Which rows an answer may have said to be stored, by the reference."""

    def __init__(self) -> None:
        self.rows: set[int] = set()
        self._one: dict[bytes, int] = {}
        """By the end of their reply subject."""

    def sent(self, sent: Sent) -> None:
        """A message went out."""
        token = sent.reply[len(PREFIX) + 1 :].encode()
        if token:
            self._one[token] = int(sent.data)

    def heard(self, token: bytes, status: int, data: bytes) -> None:
        """An answer came."""
        if token.isdigit():
            token = token.lstrip(b"0") or b"0"  # a number, however it is written
        if token in self._one:
            if referenceacks.meaning(status, data).kind in ("stored", "duplicate"):
                self.rows.add(self._one[token])


class _Walk:
    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._total = rng.choice([1, 3, 30, _ROWS])
        maximum = rng.choice([1, 7, 64, 4096])
        max_bytes, publish = rng.choice([MANY, 900]), rng.choice([20.0, 1e9])
        own = terms(FixedLimit(maximum), max_bytes, 2.0, publish, rejects=rng.random() < 0.5)
        self.lane = Lane(PREFIX, *own)
        self._server = ModelServer()
        self._allowed = _Allowed()
        self._late: list[Reply] = []
        """What was said before, and may be said again."""
        self._tokens: list[bytes] = [b"0", b"9" * 30, b"", b"x", b"n.1.fail.1.0.$FI", b".$FI"]
        self._hostility = rng.choice([0.02, 0.2, 0.6])
        self._rejected = 0
        self._offered = 0
        self.steps = 0
        self._now = 0.0

    def run(self) -> int:
        """Walks; a `Fault` where something does not hold."""
        try:
            for _ in range(self._rng.randrange(_HOSTILE)):
                self._turn(hostile=True)
            for _ in range(_TURNS):
                if self._offered == self._total and not self.lane.busy:
                    break
                self._turn(hostile=False)
            else:
                raise Fault(f"no end after {_TURNS} turns: {self.lane!r}")
        except TYPED:
            self._account()
            return self.steps
        self._account()
        if self.lane.tally.acked + self._rejected != self._total:
            raise Fault(
                f"{self._total} rows: {self.lane.tally.acked} stored, {self._rejected} rejected"
            )
        if self.lane.bytes_in_flight:
            raise Fault(f"{self.lane.bytes_in_flight} bytes stay on the wire")
        return self.steps

    def _account(self) -> None:
        self._rejected += sum(len(message) for message, _ in self.lane.tally.rejected)
        self.lane.tally.rejected.clear()
        if self.lane.tally.acked > len(self._allowed.rows):
            raise Fault(
                f"{self.lane.tally.acked} rows stored, by answers {len(self._allowed.rows)}"
            )
        if self.lane.tally.acked + self._rejected > self._offered:
            raise Fault(
                f"{self.lane.tally.acked} stored and {self._rejected} rejected of {self._offered}"
            )

    def _turn(self, hostile: bool) -> None:
        rng, lane = self._rng, self.lane
        self.steps += 1
        if lane.wants_rows and self._offered < self._total:
            count = min(rng.choice([1, 2, 30]), self._total - self._offered)
            subjects = [rng.choice("abc") for _ in range(count)]
            lane.offer(messages(subjects, first=self._offered))
            self._offered += count
        frames = lane.frames_to_send(self._now, rng.choice([1, 300, MANY]))
        self._server.now = self._now
        replies: list[Reply] = []
        for sent in parse(bytes(frames)) if frames is not None else ():
            self._allowed.sent(sent)
            self._tokens.append(sent.reply[len(PREFIX) + 1 :].encode())
            if hostile and rng.random() < self._hostility / 4:
                continue  # lost on its way
            replies += self._server.publish(sent)
        if hostile:
            if rng.random() < self._hostility / 8:
                lane.on_disconnect()
            replies = self._spoilt(replies)
        for token, status, data in replies:
            self.steps += 1
            self._allowed.heard(token, status, data)
            lane.on_reply(token, status, "", data, self._now)
            self._account()
        self._late = (self._late + replies)[-50:]
        self._now += rng.choice([0.0, 0.01, 0.3, 2.5 if frames is None else 0.1])
        lane.tally.refusals.clear()
        lane.tally.push_backs.clear()
        lane.expire(self._now)
        self._account()

    def _spoilt(self, replies: list[Reply]) -> list[Reply]:
        """The answers as they come in the end."""
        rng, found = self._rng, list[Reply]()
        for reply in replies:
            chance = rng.random() / self._hostility
            if chance > 1:
                found.append(reply)
            elif chance > 0.85:
                found += [reply] * 2
            elif chance > 0.6:
                self._late.append(reply)  # it may come later, or never
            else:
                found.append(self._changed(reply))
        if rng.random() < self._hostility:
            found += [self._changed(reply) for reply in rng.choices(self._late or found or [_NO])]
            found += rng.choices(self._late or [_NO], k=rng.randrange(3))
        if rng.random() < self._hostility:
            rng.shuffle(found)
        return found

    def _changed(self, reply: Reply) -> Reply:
        rng, (token, status, data) = self._rng, reply
        match rng.randrange(7):
            case 0:
                return Reply(rng.choice(self._tokens[-40:]), status, data)  # of another row
            case 1:
                return Reply(token, status, data[: rng.randrange(len(data) + 1)])
            case 2:
                at = rng.randrange(len(token) + 1)
                return Reply(token[:at] + rng.choice([b"", b"7", b".", b"\xff"]), status, data)
            case 3:
                return Reply(token, rng.choice([0, 503, 429, 408, 100]), b"")
            case 4:
                code = rng.choice(_ERRORS)
                said = {"stream": "S", "seq": 0, "error": error(rng.choice([400, 503]), code)}
                return Reply(token, 0, json.dumps(said).encode())
            case 5:
                return Reply(token, status, self._renumbered(data))
        return Reply(token, status, json.dumps(self._made_up()).encode())

    def _renumbered(self, data: bytes) -> bytes:
        """The same with another number, or a number that is none, for one that it has."""
        try:
            said = json.loads(data)
        except ValueError:
            return data
        if not isinstance(said, dict):
            return data
        if "seq" in said:
            said["seq"] = self._number()
        return json.dumps(said).encode()

    def _made_up(self) -> Any:
        number = self._number
        return self._rng.choice([
            {"stream": "S", "seq": number(), "error": error(400, self._rng.choice(_ERRORS))},
            {"stream": "S", "seq": number(), "duplicate": True},
            {"stream": "S", "seq": number()},
            {"error": self._rng.choice([None, 7, "x", [], {"code": -1}, {"err_code": "x"}])},
            [], None, 7, {},
        ])  # fmt: skip

    def _number(self) -> Any:
        small = self._rng.randrange(-1, 40)
        return self._rng.choice([small, small, small, 0, 1, self._total, 1 << 70, 1.5, "1", None])


_NO: Final = Reply(b"0", 503, b"")
