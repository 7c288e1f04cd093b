"""
The fence between queries that share a consumer: every interleaving of two of them, for small sizes.

The model's server is worse than any: it deals any message that it has no ack of to anybody, at any
time, and forgets acks. Queries do one step after another, and may be killed before each; what they
have in Spark's logs, in their sinks and in the record stays.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations
from typing import NamedTuple

import pytest

from pyspark_jetstream.client.info import Mark
from pyspark_jetstream.errors import OffsetError
from pyspark_jetstream.readstream.shared.claims import Claim, ranges_of
from pyspark_jetstream.readstream.shared.fence import AckFloor, Dealt, Fence, HeldClaims, Settled

QUERIES = ("a", "b")
KEEP_S = 60.0


def dealt_to(fence: Fence, query: str, claims: Mapping[str, Sequence[Claim]]) -> Dealt:
    """The owners of these claims."""
    wanted = {p: ranges_of(claim.sequence for claim in taken) for p, taken in claims.items()}
    return fence.dealt_to(query, claims, wanted)


def knows(settled: Settled, sequence: int) -> bool:
    """Whether a sequence is settled."""
    return bool(settled.among(((sequence, sequence),)))


class Query(NamedTuple):
    """One query: what is in its logs and its sink, and where its run is."""

    logged: tuple[frozenset[int], ...] = ()
    """Batches in the write-ahead log."""
    done: int = 0
    """How many of them are in the commit log."""
    sunk: tuple[frozenset[int], ...] = ()
    """What the sink has, by batch; a batch that runs again is there once."""
    phase: str = "dead"
    """
    `dead`, `begins`, `acked`, `dealt`, `read` (the record), `swapped`, `logged`, `runs`, `ran`.
    """
    dealt: frozenset[int] = frozenset()
    seen: int = -1
    """Of which version of the record it goes by."""
    batch: frozenset[int] = frozenset()
    """What it kept of what it was dealt."""


class World(NamedTuple):
    """All there is; a tuple, as half a million of them are made and compared."""

    queries: tuple[Query, Query]
    unacked: frozenset[int]
    record: bytes
    """What of it matters, as text."""
    version: int = 0
    kills: int = 0
    forgets: int = 0
    voids: int = 0
    voided: frozenset[tuple[str, int]] = frozenset()
    """Batches that were given up, by query and serial."""


class Model:
    """Steps between worlds."""

    def __init__(
        self, messages: int, batches: int, kills: int = 0, forgets: int = 0, voids: int = 0
    ) -> None:
        self.messages = frozenset(range(1, messages + 1))
        self.batches = batches
        self.first = World(
            (Query(), Query()), self.messages, _bytes(Fence()), 0, kills, forgets, voids
        )

    def ack_floor(self, world: World) -> AckFloor:
        """
        Where the consumer stands: everything below the first message without an ack is settled.
        """
        return AckFloor("s", "c", min(world.unacked, default=len(self.messages) + 1) - 1)

    def steps(self, world: World) -> Iterator[World]:
        """All worlds that may be next."""
        for index, name in enumerate(QUERIES):
            for query, changes in self._moves(world, name, world.queries[index]):
                yield _with(world, index, query, **changes)
            alive = world.queries[index].phase != "dead"
            if alive and world.kills:
                dead = world.queries[index]._replace(
                    phase="dead",
                    dealt=frozenset(),
                    seen=-1,
                    batch=frozenset(),
                )
                yield _with(world, index, dead, kills=world.kills - 1)
        if world.forgets:
            for sequence in self.messages - world.unacked:
                yield world._replace(unacked=world.unacked | {sequence}, forgets=world.forgets - 1)

    def _moves(self, world: World, name: str, query: Query) -> Iterator[tuple[Query, dict]]:
        fence = _fence(world.record)
        serial = len(query.logged)
        if query.phase == "dead":
            # A batch in the log that is not committed is run again; else the next is planned.
            again = query.done < serial
            yield query._replace(phase="logged" if again else "begins"), {}
        elif query.phase == "begins":  # the batch before is acknowledged
            yield (
                query._replace(phase="acked"),
                {"unacked": world.unacked - _acked(fence, name, query)},
            )
        elif query.phase == "acked" and serial < self.batches:
            for size in range(1, len(world.unacked) + 1):
                for dealt in combinations(sorted(world.unacked), size):
                    yield query._replace(phase="dealt", dealt=frozenset(dealt)), {}
        elif query.phase == "dealt":
            yield query._replace(phase="read", seen=world.version), {}
        elif query.phase == "read":
            if query.seen != world.version:  # somebody else was faster
                yield query._replace(phase="dealt", seen=-1), {}
                return
            yield from self._swaps(world, name, query, fence)
        elif query.phase == "swapped":
            if query.batch:
                logged = (*query.logged, query.batch)
                yield query._replace(phase="logged", logged=logged, batch=frozenset()), {}
            else:
                yield query._replace(phase="acked"), {}
        elif query.phase == "logged":  # its tasks are made
            if not fence.is_lost(name, serial - 1):
                yield query._replace(phase="runs"), {}
            elif fence.settles(name, serial - 1):
                record = _bytes(fence.emptied(name, serial - 1))
                yield query, {"record": record, "version": world.version + 1}
            else:
                yield _sunk(query, frozenset()), {}
        elif query.phase == "runs":
            yield _sunk(query, query.logged[-1]), {}
        elif query.phase == "ran":
            yield query._replace(phase="begins", done=serial), {}

    def _swaps(
        self, world: World, name: str, query: Query, fence: Fence
    ) -> Iterator[tuple[Query, dict]]:
        """The record is changed; what others have in open batches is left, or they are given up."""
        owners = fence.owners(name, {"0": ranges_of(query.dealt)})
        serial, floor = len(query.logged), self.ack_floor(world)
        for gives_up in (False, True) if owners and world.voids else (False,):
            last = query.logged[-1] if query.logged else None
            swap = _swapped(world.record, name, serial, last, query.dealt, floor, gives_up)
            yield (
                query._replace(phase="swapped", dealt=frozenset(), seen=-1, batch=swap.mine),
                {
                    "record": swap.record,
                    "version": world.version + 1,
                    "unacked": world.unacked - swap.settled,
                    "voids": world.voids - gives_up,
                    "voided": world.voided | swap.voided,
                },
            )

    def check(self, world: World) -> None:
        """No message is in two batches, but for what a batch that was given up had in its sink."""
        batches = [
            (name, serial, rows)
            for name, query in zip(QUERIES, world.queries, strict=True)
            for serial, rows in enumerate(query.sunk)
        ]
        for one, other in combinations(batches, 2):
            if one[2] & other[2]:
                assert {one[:2], other[:2]} & world.voided, (world, one, other)
        for sequence in self.messages - world.unacked:
            # What is acknowledged is in a batch that is committed, or was.
            assert any(sequence in rows for _, _, rows in batches), (world, sequence)

    def ends(self, world: World) -> frozenset[int]:
        """What is in batches when all is said and done: queries go on until nothing is left."""
        for _ in range(200):
            before = world
            for index, name in enumerate(QUERIES):
                query = world.queries[index]
                if query.phase == "acked" and world.unacked:
                    query = query._replace(phase="dealt", dealt=world.unacked)
                    world = _with(world, index, query)
                    continue
                moves = list(self._moves(world, name, query))
                if moves:
                    query, changes = moves[0]
                    world = _with(world, index, query, **changes)
            if world == before:
                break
        return frozenset().union(*(rows for query in world.queries for rows in query.sunk))


def _acked(fence: Fence, name: str, query: Query) -> frozenset[int]:
    """What a query acknowledges of its last batch."""
    if not query.logged or not fence.settles(name, len(query.logged) - 1):
        return frozenset()
    return query.logged[-1]


def _sunk(query: Query, rows: frozenset[int]) -> Query:
    """After a batch ran, for the first time or again."""
    sunk = query.sunk if len(query.sunk) == len(query.logged) else (*query.sunk, rows)
    return query._replace(phase="ran", sunk=sunk)


def _with(world: World, index: int, query: Query, **changes) -> World:
    queries = (query, world.queries[1]) if index == 0 else (world.queries[0], query)
    return world._replace(queries=queries, **changes)


class Swap(NamedTuple):
    """One change of the record."""

    record: bytes
    mine: frozenset[int]
    settled: frozenset[int]
    voided: frozenset[tuple[str, int]]


@cache
def _swapped(
    record: bytes,
    name: str,
    serial: int,
    last: frozenset[int] | None,
    dealt: frozenset[int],
    floor: AckFloor,
    gives_up: bool,
) -> Swap:
    """What a query makes of the record: most worlds differ in other things."""
    fence = _fence(record).after(1.0, {"0": floor}, KEEP_S)
    if last is not None:
        fence = fence.committed(name, serial - 1, {"0": HeldClaims("s", ranges_of(last))})
    given_up = fence.owners(name, {"0": ranges_of(dealt)}) if gives_up else set()
    fence = fence.voided(given_up)
    owned = dealt_to(fence, name, {"0": [Claim(s, 1) for s in sorted(dealt)]})
    mine = frozenset(claim.sequence for claim in owned.mine["0"])
    return Swap(
        _bytes(fence.opened(name, serial, {"0": ranges_of(mine)}) if mine else fence),
        mine,
        frozenset(owned.settled.get("0", ())),
        frozenset((each, fence.open[each].serial) for each in given_up),
    )


@cache
def _fence(record: bytes) -> Fence:
    return Fence.from_bytes(record)


def _bytes(fence: Fence) -> bytes:
    """A record without what only grows."""
    return replace(fence, clock=0.0, time=1.0).to_bytes()


def explore(model: Model) -> int:
    """Looks at all worlds; how many they are."""
    seen, todo = {model.first}, [model.first]
    while todo:
        world = todo.pop()
        model.check(world)
        for following in model.steps(world):
            # The version says only whether the record has changed since it was read.
            following = _numbered(following)
            if following not in seen:
                seen.add(following)
                todo.append(following)
    return len(seen)


def _numbered(world: World) -> World:
    """The same with the record's version counted from the oldest that a query goes by."""
    stale = [q.seen != world.version for q in world.queries]
    queries = tuple(
        q._replace(seen=(0 if old else 1) if q.phase == "read" else -1)
        for q, old in zip(world.queries, stale, strict=True)
    )
    return world._replace(queries=queries, version=1)


SIZES = {
    "kills": Model(2, 2, kills=2),
    "a forgetful server": Model(2, 2, forgets=2),
    "both": Model(2, 2, kills=1, forgets=1),
    "three messages": Model(3, 1, kills=1),
    "given up": Model(2, 2, kills=1, voids=1),
}
MORE = {
    "three messages, both": Model(3, 2, kills=1, forgets=1),
    "given up, both": Model(2, 2, kills=2, forgets=1, voids=1),
}


@pytest.mark.parametrize("model", [*SIZES.values(), *MORE.values()], ids=[*SIZES, *MORE])
def test_no_message_is_in_two_batches(model, record_property):
    """
    Whatever the order of the queries' steps, wherever they are killed, whatever the server forgets:
    no message is in two batches, and none is acknowledged that is in no batch. Only where a query
    was away for too long may its last batch be there twice.
    """
    states = explore(model)

    record_property("states", states)
    assert states > 1_000


@pytest.mark.parametrize("batches", [1, 2])
def test_nothing_is_left_behind(batches):
    """
    From wherever queries are killed and servers forget, all messages are in a batch in the end.
    """
    model = Model(2, batches, kills=1, forgets=1)
    seen, todo = {model.first}, [model.first]
    while todo:
        world = todo.pop()
        for following in map(_numbered, model.steps(world)):
            if following not in seen:
                seen.add(following)
                todo.append(following)
    model.batches = 6
    for world in seen:
        assert model.ends(world) == model.messages, world


# ── what is settled ──────────────────────────────────────────────────────────────────────────


def looked(settled: Settled, floor: int, clock: float) -> Settled:
    return settled.look(AckFloor("s", "c", floor), clock, KEEP_S)


def test_what_is_settled_is_known_for_a_while():
    """
    What was acknowledged of late is settled, below the floor and above it; what was long ago is not
    known any more.
    """
    settled = Settled.begun(AckFloor("s", "c", 10), 0.0).also(((12, 14), (20, 20)))
    assert [knows(settled, s) for s in (10, 11, 12, 14, 15, 20)] == [0, 0, 1, 1, 0, 1]

    settled = looked(settled, 14, 10.0)
    assert [knows(settled, s) for s in (10, 11, 12, 14, 15, 20)] == [0, 1, 1, 1, 0, 1]
    assert settled.ranges == ((20, 20),)
    for clock in range(20, 200, 10):
        settled = looked(settled, 30 + clock, float(clock))
    assert knows(settled, 30 + 190) and knows(settled, 30 + 190 - 60 + 10)
    assert not knows(settled, 30 + 100)
    assert len(settled.floors) <= 12


def test_what_is_settled_above_a_floor_that_stands_still_is_forgotten_in_time():
    """
    While an open batch holds the floor, ranges are known for as long as the server may forget their
    acks, and for no more than twice as long.
    """
    settled, begun = Settled.begun(AckFloor("s", "c", 0), 0.0), {}
    for clock in range(0, 600, 10):
        settled = looked(settled, 0, float(clock)).also(((10 + clock, 10 + clock),))
        begun[10 + clock] = clock
        known = {begun[sequence] for sequence in begun if knows(settled, sequence)}
        assert known >= {each for each in begun.values() if each > clock - KEEP_S}
        assert min(known) > clock - 2 * KEEP_S - 10
    assert looked(settled, 610, 600.0).ranges == looked(settled, 610, 600.0).older == ()


def test_a_floor_that_goes_back_a_little_was_forgotten():
    """
    A server that forgets acks goes back to a floor of a moment ago: what is above it stays settled.
    """
    settled = looked(looked(Settled.begun(AckFloor("s", "c", 0), 0.0), 50, 10.0), 100, 20.0)

    settled = looked(settled, 60, 21.0)
    assert knows(settled, 61) and knows(settled, 100) and not knows(settled, 101)


def test_a_consumer_that_was_reset_or_made_anew_has_nothing_settled():
    """
    One that goes back further than any server forgets was put back on purpose: what it delivers is
    to be read again. So is what a new consumer of the name delivers.
    """
    settled = Settled.begun(AckFloor("s", "c", 100), 0.0)
    settled = looked(settled, 200, 10.0)

    assert not knows(looked(settled, 50, 11.0), 150)
    assert not knows(settled.look(AckFloor("s", "another", 0), 11.0, KEEP_S), 150)


def test_sequences_of_a_stream_that_is_no_more_say_nothing():
    """
    What was open or settled of a stream is neither of the one that was made anew.
    """
    fence = Fence().after(1.0, {"0": AckFloor("s", "c", 0)}, KEEP_S)
    fence = fence.opened("a", 0, {"0": ((5, 5),)})
    anew = fence.after(2.0, {"0": AckFloor("t", "c2", 0)}, KEEP_S)
    claims = {"0": [Claim(5, 1), Claim(6, 1)]}

    assert dealt_to(fence, "b", claims).theirs == {"0": [5]}
    assert fence.owners("b", {"0": ((5, 5),)}) == {"a"}
    assert dealt_to(anew, "b", claims).mine == claims and not anew.owners("b", {"0": ((5, 5),)})
    assert not knows(anew.committed("a", 0, {"0": HeldClaims("s", ((5, 5),))}).settled["0"], 5)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_settled_of_many_sequences_is_what_is_of_each(seed):
    """
    Above the floor as below it, at both ends of ranges and between them.
    """
    rng = random.Random(seed)
    done = set(rng.sample(range(1, 60), rng.randint(0, 30)))
    floor = rng.choice([0, 10, 59])
    settled = Settled("s", "c", floor, ((0.0, floor // 2),)).also(ranges_of(done))
    expected = {*range(floor // 2 + 1, floor + 1), *(each for each in done if each > floor)}
    asked = rng.sample(range(1, 70), rng.randint(0, 69))

    assert {each for each in range(1, 70) if knows(settled, each)} == expected
    assert settled.among(ranges_of(asked)) == expected.intersection(asked)
    assert settled.among(()) == set()


def test_of_a_message_that_is_settled_and_in_an_open_batch_the_batch_counts():
    """
    It is left to the other query; what is only settled is acknowledged once more.
    """
    fence = Fence().after(1.0, {"0": AckFloor("s", "c", 0)}, KEEP_S)
    fence = fence.opened("a", 0, {"0": ((5, 6),)})
    fence = fence.committed("a", 0, {"0": HeldClaims("s", ((5, 6),))})
    fence = fence.opened("a", 1, {"0": ((5, 5),)})
    claims = {"0": [Claim(7, 1), Claim(5, 3), Claim(6, 2), Claim(8, 1)]}
    dealt = dealt_to(fence, "b", claims)

    assert dealt.theirs == {"0": [5]} and dealt.settled == {"0": [6]}
    assert dealt.mine == {"0": [Claim(7, 1), Claim(8, 1)]}


def test_time_in_which_nobody_plans_does_not_count():
    """
    While a server is away it deals nothing out, so what was settled before stays known.
    """
    fence = Fence().after(1000.0, {"0": AckFloor("s", "c", 0)}, KEEP_S)
    fence = fence.committed("a", 0, {"0": HeldClaims("s", ((1, 9),))})
    fence = fence.after(1_000_000.0, {"0": AckFloor("s", "c", 0)}, KEEP_S)

    assert fence.clock == 5.0
    assert knows(fence.settled["0"], 9)


# ── the record ───────────────────────────────────────────────────────────────────────────────


def test_a_record_reads_as_it_was_written():
    """
    Large or small, the record survives the bucket.
    """
    fence = Fence().after(5.0, {"0": AckFloor("s", "c", 3), "1": AckFloor("s", "d", 0)}, KEEP_S)
    fence = fence.opened("a", 0, {"0": ((5, 6),), "1": ()}).opened(
        "b", 4, {"1": ranges_of(range(1, 40_001, 2))}
    )
    fence = fence.committed("a", 0, {"0": HeldClaims("s", ((5, 6),))}).voided(["b"])
    fence = fence.marked({"S": Mark("s", 6, "2026-11-27T00:00:00Z", 7)})
    aged = fence.settled["0"].aged(2.5).also(((9, 11),))
    fence = replace(fence, settled={**fence.settled, "0": aged})
    data = fence.to_bytes()

    assert Fence.from_bytes(data) == fence
    assert len(data) < 100_000
    assert fence.is_lost("b", 4) and not fence.is_lost("b", 5) and not fence.is_lost("a", 0)
    assert fence.settles("b", 4) and not fence.emptied("b", 4).settles("b", 4)
    assert fence.emptied("b", 4).is_lost("b", 4) and not fence.settles("a", 0)


def test_a_record_that_is_shortened_has_its_open_batches():
    """
    What was committed above the floor is left out, and of queries without an open batch all but
    those that planned last; open and lost batches stay.
    """
    fence = (
        Fence().after(5.0, {"0": AckFloor("s", "c", 3)}, KEEP_S).opened("a", 0, {"0": ((5, 5),)})
    )
    settled = fence.settled["0"].also(((7, 7),)).aged(1.0).also(((9, 9),))
    short = replace(fence, settled={"0": settled}).shortened()

    fence = short.emptied("lost", 4)
    for number in range(300):
        fence = fence.restored(f"q{number}", 0, {})
    few = fence.shortened()

    assert knows(settled, 7) and knows(settled, 9)
    assert short.settled["0"].among(((1, 20),)) == set()
    assert few.open["a"] == short.open["a"] and few.is_lost("lost", 4)
    assert len(fence.open) == 302 and len(few.open) == 102 and "q299" in few.open


def test_what_is_settled_of_a_paused_consumer_does_not_become_old():
    """
    As long as it deals nothing out, no message comes again.
    """
    floor = AckFloor("s", "c", 0)
    fence = Fence().after(1.0, {"0": floor, "1": floor}, KEEP_S)
    settled = {p: each.also(((7, 7),)) for p, each in fence.settled.items()}
    fence = replace(fence, settled=settled)
    for now in range(5, 200, 5):
        fence = fence.after(now, {"0": floor._replace(paused=True), "1": floor}, KEEP_S)

    assert knows(fence.settled["0"], 7) and not knows(fence.settled["1"], 7)


def test_what_spark_has_not_recorded_is_dropped():
    """
    Of a query that is back only the batch behind its last one is nobody's; a record that does not
    know the query stays as it is.
    """
    fence = Fence().after(5.0, {"0": AckFloor("s", "c", 0)}, KEEP_S)
    fence = fence.opened("a", 3, {"0": ((5, 6),)})

    assert fence.dropped("a", 3) == fence == fence.dropped("b", 0)
    dropped = fence.dropped("a", 2)
    assert not dropped.owners("b", {"0": ((5, 6),)}) and dropped.has("a", 3)
    assert dropped.opened("a", 3, {"0": ((7, 7),)}).owners("b", {"0": ((7, 7),)}) == {"a"}


def test_a_record_has_the_latest_mark_of_each_stream():
    """
    A look that was made before another query's changes nothing; a stream that is forgotten has no
    mark until the next look. An older version writes none.
    """
    early, late, other = (Mark("s", at, "", at) for at in (5, 9, 3))
    fence = Fence().marked({"S": late, "T": other}).marked({"S": early})

    assert fence.marks == {"S": late, "T": other}
    assert fence.forgotten((), {"S"}).marked({"S": early}).marks == {"S": early, "T": other}
    record = json.loads(fence.to_bytes())
    del record["marks"]
    assert Fence.from_bytes(json.dumps(record).encode()) == Fence()


def test_a_record_keeps_what_one_of_its_queries_does_not_read():
    """
    Queries whose lists of streams differ have one record: each finds its streams by their names,
    and leaves what it does not read as it was.
    """
    fence = Fence().after(5.0, {"A": AckFloor("a", "c", 3), "B": AckFloor("b", "c", 4)}, KEEP_S)
    fence = fence.opened("one", 0, {"A": ((5, 5),), "B": ((6, 6),)})
    read = Fence.from_bytes(fence.to_bytes())

    assert read.owners("two", {"B": ((6, 6),), "C": ((5, 6),)}) == {"one"}
    assert not read.owners("two", {"C": ((5, 6),)})
    read = read.opened("two", 0, {"B": ((7, 7),)})
    back = Fence.from_bytes(read.to_bytes())
    assert back.open["one"] == fence.open["one"] and back.settled == fence.settled
    assert dealt_to(back, "one", {"B": [Claim(7, 1)]}).theirs == {"B": [7]}


def test_time_in_which_others_plan_does_not_count():
    """
    What was settled of a stream stays known while only queries plan that do not read it.
    """
    fence = Fence().after(1000.0, {"0": AckFloor("s", "c", 0)}, KEEP_S)
    for second in (1005.0, 1010.0):
        fence = fence.after(second, {"0": AckFloor("s", "c", 9)}, KEEP_S)
    for second in range(200):
        fence = fence.after(1011.0 + second, {"1": AckFloor("t", "c", 0)}, KEEP_S)
    fence = fence.after(1211.0, {"0": AckFloor("s", "c", 9)}, KEEP_S)

    assert fence.clock == 211.0
    assert knows(fence.settled["0"], 9)


@pytest.mark.parametrize(
    "data",
    [b"", b"x", b"{}", b'{"version": 2}', b"[]",
     b'{"version": 1, "time": 1, "clock": 0, "open": {"a": {}}, "settled": {}}',
     b'{"version": 1, "time": 1, "clock": 0, "open": {}, "settled": {"0": {"floors": []}}}'],
)  # fmt: skip
def test_what_is_no_record(data):
    """
    What is none is one error.
    """
    with pytest.raises(OffsetError, match="no record of open batches"):
        Fence.from_bytes(data)
