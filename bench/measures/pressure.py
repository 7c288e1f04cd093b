"""
What is measured of a write under pressure: the window, and what pauses and priorities cost others.

Nothing here needs Spark: the publisher runs in this process, the server, operators and what delays
bytes in others, so that none of them waits for its interpreter.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_jetstream.fetch.directget import read_direct
from pyspark_jetstream.fetch.layout import DirectRead
from pyspark_jetstream.options import parse_sink
from pyspark_jetstream.outbox.messages import Messages
from pyspark_jetstream.outbox.priority import Priorities, Priority
from pyspark_jetstream.publish.metrics import DEAD_LETTER
from pyspark_jetstream.write.rows import MessageBuilder
from tests.kits.servers import DevServer

from ..comparisons import Part, Ratio, Times, compared, of_ratios, of_times
from ..others.child import Children, Outcome
from ..windows import comparison
from ..writer import SIZE, SUBJECTS, batch, empty, rows, sink, write

_ROUNDS: Final = 3
"""Of the windows on each real server."""

_TURNS: Final = 5
"""Of two writes that are compared."""

_COMMANDS: Final = 200
_EVERY_S: Final = 0.05
_PAUSE_S: Final = 0.05
_UNDER_WAY: Final = 5
"""Blocks that are written before the first command."""

_OVERLOAD_S: Final = 2.0
"""How long a writer is given to be more than the server takes, on a busy machine, too."""

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
_BY_SUBJECT: Final = parse_sink(
    {
        "prioritySubjects": ",".join(
            f"pressure.{priority.label}.*={priority.label}" for priority in _SHARES
        )
    }
).priorities


def parts(seconds: float, repeat: int) -> dict[str, Callable[[], Part]]:
    """
    What there is to measure, by name.

    Args:
        seconds: of one write.
        repeat: so many times the turns.
    """
    return {
        "windows": lambda: _windows(seconds, repeat),
        "isolation": lambda: of_ratios(
            "others while one subject is paused", list(_isolation(seconds, _TURNS * repeat))
        ),
        "receipts": lambda: of_times("from a command to its receipt", _receipts()),
        "priorities": lambda: of_times(
            "from offered to stored", _priorities(max(_OVERLOAD_S, 2 * seconds))
        ),
        "protocol": lambda: of_ratios(
            "what it costs when nobody uses it", list(_protocol(seconds, _TURNS * repeat))
        ),
    }


def _windows(seconds: float, repeat: int) -> Part:
    surroundings = [*comparison.simulated(), *comparison.real(seconds, _ROUNDS * repeat)]
    return Part(comparison.entries(surroundings), comparison.table(surroundings))


# ── two writes that take turns ───────────────────────────────────────────────────────────────


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
        # No longer: this process keeps it for its next write.
        job = _command(url, [_HOT], 1, 2 * seconds)
        with _filled(url), Children([job]) as operator:
            return write(sink(url), _after(operator, mixed), seconds).rate

    def limited() -> float:
        with _filled(url, **_LIMITED):
            return write(sink(url), rows(mixed), seconds).rate

    name = f"others, one row of {every} paused by an operator"
    yield compared(name, "others alone", paused, alone, turns)
    name = f"others, one row of {every} at its limit"
    yield compared(name, "others alone", limited, lambda: alone(**_LIMITED), turns)


def _mixed(every: int) -> list[str]:
    """The subjects, and the hot one among them."""
    mixed: list[str] = []
    for n, subject in enumerate(SUBJECTS, 1):
        mixed += [subject] if n % (every - 1) else [subject, _HOT]
    return mixed


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

        none = parse_sink({}).priorities
        yield compared(
            "a throttleSubject",
            "throttleSubject=none",
            lambda: rate(SUBJECTS, none),
            lambda: rate(SUBJECTS, none, throttle_subject=None),
            turns,
        )
        yield compared(
            "priorities by subject",
            "without",
            lambda: rate(_URGENT, _BY_SUBJECT),
            lambda: rate(_URGENT, none),
            turns,
        )


# ── times ────────────────────────────────────────────────────────────────────────────────────


def _command(url: str, subjects: Sequence[str], count: int, pause_s: float) -> dict[str, Any]:
    return {
        "do": "bench.others.commands:pause",
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

        write(
            sink(server.url), blocks(), _LONG_S, lambda: any(outcome.done() for outcome in outcomes)
        )
        latencies_s = outcomes[0].result().latencies_s
    return [Times("receipts at full rate", [latency_s * 1e3 for latency_s in latencies_s])]


def _priorities(seconds: float) -> list[Times]:
    """
    A row says when it was offered, the stream when it was stored: both are this machine's clock.

    Rows that still wait in the end are not counted; nearly all of them are normal.
    """
    rules = parse_sink({"overloadPolicy": "drop"}).rules
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
        table = pa.Table.from_batches(read_direct(js.client, read))
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
