"""
The way from one layout to another, with every interleaving of what the server, the query and its
operator do: it is enumerated, not sampled.

Three actors. The *server* stores messages in the origin and copies them, each layout at its own
pace. The *query* plans a batch, runs it, has it committed; it ends before a batch, after its plan,
after its rows are in the sink, or after its commit. The *operator* starts it with the options of
either layout. That a partition lags behind the others of its layout is a batch that reads less of
it.

The model does what `rangedriver` does, with the same `Change`, `Offset` and `begins`, through the
JSON that Spark's log has.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import pytest

from pyspark_jetstream.fetch.layout import Layout, SubjectPartition
from pyspark_jetstream.readstream.offsets import Change, Offset, begins

Rows = tuple[tuple[int, int], ...]
"""Key and number of each message, in an order that its partitions allow."""


class World:
    """Messages of an origin, and two layouts of it: which message is where."""

    def __init__(self, messages: int, old: int, new: int) -> None:
        keys = old * new
        self.keys = [n % keys for n in range(messages)]
        """By sequence of the origin, from 0."""
        self.number = [n // keys for n in range(messages)]
        """Of each message among those of its key."""
        self.layouts = {
            side: Layout(tuple(SubjectPartition(p, f"{side}-{p}") for p in range(count)))
            for side, count in (("old", old), ("new", new))
        }
        self.streams: dict[str, list[int]] = {
            f"{side}-{p}": [n for n, key in enumerate(self.keys) if key % count == p]
            for side, count in (("old", old), ("new", new))
            for p in range(count)
        }
        """By stream the messages of its sequences from 1 on."""

    def __repr__(self) -> str:
        return f"<World of {len(self.keys)} messages>"

    def position(self, stream: str, upto: int) -> int:
        """The last sequence of a stream with one of the first `upto` messages of the origin."""
        return sum(message < upto for message in self.streams[stream])


class State(NamedTuple):
    """All there is at one moment; a query that is down has neither options nor a change."""

    published: int
    copied: tuple[int, int]
    """Messages of the origin that the old and the new layout have."""
    options: str
    """`old`, `new`, or "" of a query that is down."""
    start: str
    """Where the last batch of the log begins, as text; "" of a new query."""
    end: str
    phase: int
    """0: that batch is committed; 1: it is planned; 2: the sink has its rows."""
    sink: tuple[int, ...]
    """By key the rows of committed batches."""


def sides(of: Layout) -> str:
    return of.streams[0].split("-")[0]


class Model:
    """The steps from one state to the next."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rows = cache(self._rows)
        self.offset = cache(lambda text: Offset.from_json(json.loads(text)))
        self.ends = cache(self._ends)

    def __repr__(self) -> str:
        return f"<Model of {self.world}>"

    def begin(self) -> State:
        """Before anything is stored, with a query that has read its first batch, of no rows."""
        layout = self.world.layouts["old"]
        streams = dict.fromkeys(layout.streams, "t")
        nowhere = (0,) * len(layout)
        first = Offset(nowhere, nowhere, streams, "c", query="q", layout=layout)
        text = json.dumps(first.to_json())
        keys = len(set(self.world.keys))
        return State(0, (0, 0), "old", text, text, 0, (0,) * keys)

    def after(self, state: State) -> Iterator[State]:
        """Every state that may come next."""
        if state.options == "" or state.phase == 0:  # amid a batch nothing depends on it
            yield from self.server(state)
        if state.options == "":
            for options in ("old", "new"):
                yield state._replace(options=options)
            return
        yield state._replace(options="")  # killed
        if state.phase == 0:
            for end in self.ends(state.end, state.options, state.published, state.copied):
                yield state._replace(start=state.end, end=end, phase=1)
        elif state.phase == 1:
            self.rows(state.start, state.end)
            yield state._replace(phase=2)
        else:
            yield state._replace(
                start=state.end, phase=0, sink=self.stored(state.sink, state.start, state.end)
            )

    def server(self, state: State) -> Iterator[State]:
        if state.published < len(self.world.keys):
            yield state._replace(published=state.published + 1)
        old, new = state.copied
        if old < state.published:
            yield state._replace(copied=(old + 1, new))
        if new < state.published:
            yield state._replace(copied=(old, new + 1))

    # ── what the query does ──────────────────────────────────────────────────────────────────

    def change(self, offset: Offset, options: str, upto: int, copied: tuple[int, int]) -> Change:
        """What `changeover` finds, and where it waits for copies: then there is no step yet."""
        to = self.world.layouts[options]
        if offset.change is not None and offset.change.to == to:
            return offset.change
        if min(copied) < upto:
            raise LookupError("copies are behind")
        cut = {stream: self.world.position(stream, upto) for stream in self.world.streams}
        return Change(to, cut, dict.fromkeys(to.streams, "t"))

    def _ends(
        self, start: str, options: str, published: int, copied: tuple[int, int]
    ) -> tuple[str, ...]:
        """Where the batch behind `start` may end."""
        offset = self.offset(start).bare()
        layout = offset.layout
        assert layout is not None
        side = sides(layout)
        have = dict(zip(("old", "new"), copied, strict=True))[side]
        upto = tuple(self.world.position(stream, have) for stream in layout.streams)
        change = None
        if side != options:
            try:
                change = self.change(offset, options, published, copied)
            except LookupError:
                return ()
            upto = tuple(map(min, upto, change.upto(layout, offset.sequences)))
        upto = tuple(map(max, upto, offset.sequences))
        ranges = [range(low, high + 1) for low, high in zip(offset.sequences, upto, strict=True)]
        found = [
            replace(offset.at(at), change=change)
            for at in itertools.product(*ranges)
            if at != offset.sequences
        ]
        if change is not None and change.upto(layout, offset.sequences) == offset.sequences:
            found.append(offset.switched(change, {}))
        return tuple(json.dumps(end.to_json()) for end in found)

    def _rows(self, start: str, end: str) -> Rows:
        """The rows of a batch, by its offsets alone."""
        upto = self.offset(end)
        assert upto.layout is not None
        first = begins(json.loads(start), upto)
        bounds = zip(upto.layout.streams, first.sequences, upto.sequences, strict=True)
        return tuple(
            (self.world.keys[message], self.world.number[message])
            for stream, low, high in bounds
            for message in self.world.streams[stream][low:high]
        )

    def stored(self, sink: tuple[int, ...], start: str, end: str) -> tuple[int, ...]:
        """
        The sink with the rows of a committed batch: each must be the next one of its key, which is
        the order of the subject, once, and goes on with the state that the key has.
        """
        counts = list(sink)
        for key, number in self.rows(start, end):
            assert number == counts[key], f"key {key}: {number} after {counts[key]}: {start} {end}"
            counts[key] += 1
        assert (self.offset(start).query, self.offset(start).consumer) == ("q", "c")
        return tuple(counts)

    # ── all states ───────────────────────────────────────────────────────────────────────────

    def reach(self) -> dict[State, list[State]]:
        """Every state that can be reached, with those that come next."""
        begin = self.begin()
        known, found, todo = {begin: begin}, {}, [begin]
        while todo:
            state = todo.pop()
            following = list(self.after(state))
            todo += [each for each in following if each not in known]
            found[state] = [known.setdefault(each, each) for each in following]
        return found


def check(messages: int) -> int:
    """Enumerates all, and returns how many states there are."""
    world = World(messages, 2, 3)
    model = Model(world)
    found = model.reach()
    counts = [world.keys.count(key) for key in range(len(set(world.keys)))]
    ended = set()
    for state in found:
        offset = model.offset(state.end)
        if state.phase == 0 and state.published == messages == min(state.copied):
            assert offset.layout is not None
            if tuple(counts) == state.sink:
                ended.add(sides(offset.layout))
    assert ended == {"old", "new"}  # it comes to its end in either layout
    back: dict[State, list[State]] = {}
    for state, following in found.items():
        for each in following:
            back.setdefault(each, []).append(state)
    done = [s for s in found if s.sink == tuple(counts) and s.phase == 0 and s.options == "new"
            and sides(model.offset(s.end).layout or world.layouts["old"]) == "new"]  # fmt: skip
    can, todo = set(done), list(done)
    while todo:
        for before in back.get(todo.pop(), ()):
            if before not in can:
                can.add(before)
                todo.append(before)
    assert len(can) == len(found)  # from everywhere there is a way to the end of the new layout
    return len(found)


@pytest.mark.parametrize("messages", [4, 8])
def test_every_interleaving(messages: int, record_property: Callable[[str, object], None]) -> None:
    """
    Two old and three new partitions: each message once, in the order of its subject, with the
    query's state, whoever is killed and whatever runs again; and from each state the new layout can
    be read to its end.
    """
    states = check(messages)
    record_property("states", states)
    assert states > 1_000
