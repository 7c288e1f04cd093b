"""
What is measured of a write under pressure: the window, and what pauses and priorities cost others.

Nothing here needs Spark: the publisher runs in this process, the server, operators and what delays
bytes in others, so that none of them waits for its interpreter. What is compared takes turns, and
each figure is a median; the range beside it is of the ratios of the turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from statistics import median
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from rich.table import Table

from pyspark_jetstream.devserver import DevServer
from pyspark_jetstream.fetch.directget import DirectRead, read_direct
from pyspark_jetstream.outbox.admission import Rules
from pyspark_jetstream.outbox.messages import Messages
from pyspark_jetstream.outbox.priority import Priorities, Priority
from pyspark_jetstream.publish.metrics import DEAD_LETTER
from pyspark_jetstream.write.rows import MessageBuilder

from . import windows
from .child import Children, Outcome
from .results import RATE, Entry
from .writer import SIZE, SUBJECTS, batch, empty, rows, sink, write

__all__ = ["Part", "Ratio", "Times", "parts"]

_ROUNDS: Final = 3
"""Of the windows on each real server."""

_TURNS: Final = 5
"""Of two writes that are compared."""

_COMMANDS: Final = 200
_EVERY_S: Final = 0.05
_PAUSE_S: Final = 0.05
_UNDER_WAY: Final = 5
"""Blocks that are written before the first command."""

_LONG_S: Final = 120.0

_HOT: Final = "pressure.hot"
_HOT_ROWS: Final = 1_000
"""What the stream takes of one subject."""

_LIMITED: Final = {
    "max_msgs_per_subject": _HOT_ROWS,
    "discard": "new",
    "discard_new_per_subject": True,
}
_EVERY: Final = (100, 10)
"""One row of so many is of the hot subject."""

_ROOM: Final = "jetstream { max_buffered_msgs: 100 }"
_SHARES: Final = {Priority.CRITICAL: 4, Priority.NORMAL: 36, Priority.NON_CRITICAL: 60}
_URGENT: Final = tuple(
    f"pressure.{priority.label}.{n}"
    for n in range(10)
    for priority, share in _SHARES.items()
    for _ in range(share)
)
_BY_SUBJECT: Final = Priorities(
    subjects=tuple((f"pressure.{each.label}.*", each) for each in _SHARES)
)


class Part(NamedTuple):
    """What is shown of some measurements."""

    entries: list[Entry]
    table: Table


class Ratio(NamedTuple):
    """Two writes that took turns; rows a second."""

    name: str
    reference: str
    rates: Sequence[float]
    references: Sequence[float]

    @property
    def value(self) -> float:
        """Of the medians."""
        return median(self.rates) / median(self.references)

    @property
    def turns(self) -> list[float]:
        """Of each turn, ascending."""
        return sorted(a / b for a, b in zip(self.rates, self.references, strict=True))

    def entry(self) -> Entry:
        """What goes into the JSON."""
        medians = round(median(self.rates)), round(median(self.references))
        return Entry(self.name, medians[0], RATE, self.reference, medians[1], round(self.value, 3))


class Times(NamedTuple):
    """How long something took, each time; milliseconds."""

    name: str
    each: Sequence[float]

    def quantile(self, share: float) -> float:
        """So many of all took no longer."""
        ascending = sorted(self.each)
        return ascending[min(len(ascending) - 1, int(share * len(ascending)))]

    @property
    def figures(self) -> dict[str, float]:
        """What is shown."""
        return {name: self.quantile(q) for name, q in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))}

    def entries(self, beside: Times | None = None) -> list[Entry]:
        """What goes into the JSON; beside each figure that of the others, if there are any."""
        made = []
        for figure, value in self.figures.items():
            name, value = f"{self.name}: {figure}", round(value, 2)
            if beside is None:
                made.append(Entry(name, value, "ms"))
            else:
                other = round(beside.figures[figure], 2)
                made.append(Entry(name, value, "ms", beside.name, other, round(value / other, 3)))
        return made


def parts(seconds: float, repeat: int) -> dict[str, Callable[[], Part]]:
    """
    What there is to measure, by name.

    Args:
        seconds: of one write.
        repeat: so many times the turns.
    """
    return {
        "windows": lambda: _windows(seconds, repeat),
        "isolation": lambda: _ratios(
            "others while one subject is paused", _isolation, seconds, repeat
        ),
        "receipts": lambda: _times("from a command to its receipt", _receipts()),
        "priorities": lambda: _times("from offered to stored", _priorities(2 * seconds)),
        "protocol": lambda: _ratios(
            "what it costs when nobody uses it", _protocol, seconds, repeat
        ),
    }


def _windows(seconds: float, repeat: int) -> Part:
    found = [*windows.simulated(), *windows.real(seconds, _ROUNDS * repeat)]
    return Part(windows.entries(found), windows.table(found))


# ── two writes that take turns ───────────────────────────────────────────────────────────────


def _ratios(
    title: str, measure: Callable[[float, int], Iterator[Ratio]], seconds: float, repeat: int
) -> Part:
    found = list(measure(seconds, _TURNS * repeat))
    table = Table(title)
    for column in ("rows/s", "reference", "ratio", "of the turns"):
        table.add_column(column, justify="right")
    for each in found:
        table.add_row(
            each.name,
            f"{median(each.rates):,.0f}",
            f"{each.reference} {median(each.references):,.0f}",
            f"{each.value:.3f}",
            f"{each.turns[0]:.3f} to {each.turns[-1]:.3f}",
        )
    return Part([each.entry() for each in found], table)


def _compared(
    name: str, reference: str, ours: Callable[[], float], other: Callable[[], float], turns: int
) -> Ratio:
    other()  # the first write finds everything cold
    rates: list[float] = []
    references: list[float] = []
    for turn in range(turns):
        calls = [(rates, ours), (references, other)]
        for found, call in calls if turn % 2 else reversed(calls):
            found.append(call())
    return Ratio(name, reference, rates, references)


def _isolation(seconds: float, turns: int) -> Iterator[Ratio]:
    """What the others reach is what is acked, for the hot subject stores nothing."""
    with DevServer() as server:
        for every in _EVERY:
            yield from _isolated(server.url, every, seconds, turns)


def _isolated(url: str, every: int, seconds: float, turns: int) -> Iterator[Ratio]:
    mixed = _mixed(every)

    def alone(**config: Any) -> float:
        with _filled(url, **config):
            return write(sink(url), rows(SUBJECTS), seconds).rate

    def paused() -> float:
        job = _command(url, [_HOT], 1, _LONG_S)
        with _filled(url), Children([job]) as operator:
            return write(sink(url), _after(operator, mixed), seconds).rate

    def limited() -> float:
        with _filled(url, **_LIMITED):
            return write(sink(url), rows(mixed), seconds).rate

    name = f"others, one row of {every} paused by an operator"
    yield _compared(name, "others alone", paused, alone, turns)
    name = f"others, one row of {every} at its limit"
    yield _compared(name, "others alone", limited, lambda: alone(**_LIMITED), turns)


def _mixed(every: int) -> list[str]:
    """The subjects, and the hot one among them."""
    found: list[str] = []
    for n, subject in enumerate(SUBJECTS, 1):
        found += [subject] if n % (every - 1) else [subject, _HOT]
    return found


def _after(operator: Children, subjects: Sequence[str]) -> Iterator[Messages]:
    """Rows on these subjects, from when one of them is paused."""
    operator.go()
    operator.outcome()
    yield from rows(subjects)


@contextmanager
def _filled(url: str, **config: Any) -> Iterator[None]:
    """A stream that has all it takes of the hot subject."""
    with empty(url, **config):
        block = MessageBuilder(id_prefix="hot").build(batch([_HOT] * _HOT_ROWS))
        write(sink(url), [block], _LONG_S)
        yield


def _protocol(seconds: float, turns: int) -> Iterator[Ratio]:
    with DevServer() as server:
        url = server.url

        def rate(subjects: Sequence[str], priorities: Priorities, **options: Any) -> float:
            with empty(url):
                options["priorities"] = priorities
                return write(sink(url, **options), rows(subjects, priorities), seconds).rate

        none = Priorities()
        yield _compared(
            "throttle=true",
            "throttle=false",
            lambda: rate(SUBJECTS, none),
            lambda: rate(SUBJECTS, none, throttle=False),
            turns,
        )
        yield _compared(
            "priorities by subject",
            "without",
            lambda: rate(_URGENT, _BY_SUBJECT),
            lambda: rate(_URGENT, none),
            turns,
        )


# ── times ────────────────────────────────────────────────────────────────────────────────────


def _times(title: str, found: Sequence[Times]) -> Part:
    table = Table(title)
    for column in ("times", "p50 ms", "p99 ms", "max ms"):
        table.add_column(column, justify="right")
    for each in found:
        figures = (f"{value:,.1f}" for value in each.figures.values())
        table.add_row(each.name, f"{len(each.each):,}", *figures)
    first, *others = found
    entries = first.entries() + [entry for each in others for entry in each.entries(first)]
    return Part(entries, table)


def _command(url: str, subjects: Sequence[str], count: int, pause_s: float) -> dict[str, Any]:
    return {
        "do": "bench.commands:pause",
        "url": url,
        "subjects": subjects,
        "count": count,
        "pause_s": pause_s,
        "every_s": _EVERY_S,
    }


def _receipts() -> list[Times]:
    """Each command pauses another one of the subjects that are written to."""
    with (
        ThreadPoolExecutor(1) as apart,  # the last to end: it waits for the operator
        DevServer() as server,
        empty(server.url),
        Children([_command(server.url, SUBJECTS, _COMMANDS, _PAUSE_S)]) as operator,
    ):
        outcomes: list[Future[Outcome]] = []

        def blocks() -> Iterator[Messages]:
            for number, block in enumerate(rows(SUBJECTS)):
                yield block
                if number == _UNDER_WAY:
                    operator.go()
                    outcomes.append(apart.submit(operator.outcome))

        write(sink(server.url), blocks(), _LONG_S, lambda: any(each.done() for each in outcomes))
        latencies_s = outcomes[0].result().latencies_s
    return [Times("receipts at full rate", [each * 1e3 for each in latencies_s])]


def _priorities(seconds: float) -> list[Times]:
    """
    A row says when it was offered, the stream when it was stored: both are this machine's clock.

    Rows that still wait in the end are not counted; nearly all of them are normal.
    """
    rules = Rules(sheddable=frozenset({Priority.NON_CRITICAL}))
    with (
        DevServer(_ROOM) as server,
        empty(server.url, "DEAD"),
        empty(server.url) as js,
    ):
        options = sink(
            server.url,
            priorities=_BY_SUBJECT,
            dead_letter_subject="dead.{subject}",
            rules=rules,
        )
        written = write(options, _stamped(), seconds)
        if not written.counts.total(DEAD_LETTER.name)[0]:
            raise RuntimeError("nothing was shed: there was no overload")
        last = js.stream_info("PRESSURE").last_seq
        read = DirectRead(None, "PRESSURE", None, 0, last, None, False, False)
        table = pa.Table.from_batches(read_direct(js.client, read, None))
    stored = table["timestamp"].cast(pa.int64())
    offered = table["data"].cast(pa.string()).cast(pa.int64())
    waits = pc.divide(pc.subtract(stored, offered), 1e3)
    return [
        Times(
            f"{priority.label} rows under overload",
            waits.filter(
                pc.starts_with(table["subject"], f"pressure.{priority.label}.")
            ).to_pylist(),
        )
        for priority in (Priority.CRITICAL, Priority.NORMAL)
    ]


def _stamped() -> Iterator[Messages]:
    """Rows whose payload is the time at which they are offered, in microseconds."""
    builder = MessageBuilder(id_prefix="stamped", priorities=_BY_SUBJECT)
    while True:
        yield builder.build(batch(_URGENT, b"%0*d" % (SIZE, time.time_ns() // 1_000)))
