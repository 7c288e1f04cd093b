"""
What a watch has seen over time: lags and rates of the last looks, drawn as one line of text.

Rule: no I/O; whoever draws says which characters can be shown.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from .findings import Inspection

__all__ = ["ASCII", "BLOCKS", "Trend", "Trends", "sparkline"]

BLOCKS: Final = "▁▂▃▄▅▆▇█"
ASCII: Final = "_.-=+*#@"
"""Where blocks cannot be shown."""

_LOOKS: Final = 24
"""How many of the last looks are drawn."""

Key = tuple[str, str]


def sparkline(values: Iterable[float | None], levels: str = BLOCKS) -> str:
    """
    One character a value, between nothing and the largest of them; a space where there is none.
    """
    shown = list(values)
    top = max((value for value in shown if value is not None), default=0.0)
    steps = len(levels) - 1

    def drawn(value: float | None) -> str:
        if value is None:
            return " "
        if value <= 0 or top <= 0:
            return levels[0]
        return levels[max(1, round(value / top * steps))]

    return "".join(map(drawn, shown))


class Trend(NamedTuple):
    """One line of a watch."""

    of: str
    what: str
    now: float | None
    looks: str


class Trends:
    """The last looks of a watch, by what was looked at."""

    def __init__(self, levels: str = BLOCKS) -> None:
        self._levels = levels
        self._seen: dict[Key, deque[float | None]] = {}
        self._looks = 0

    def see(self, inspection: Inspection) -> None:
        """Takes what was found next."""
        values = dict(_series(inspection))
        self._looks += 1
        for each in values.keys() - self._seen.keys():
            self._seen[each] = deque(maxlen=_LOOKS)
        for each, seen in self._seen.items():
            seen.append(values.get(each))

    def drawn(self, inspection: Inspection) -> list[Trend]:
        """What this one found, with the looks before; nothing before the second one."""
        if self._looks < 2:
            return []
        return [
            Trend(*key, now, sparkline(self._seen[key], self._levels))
            for key, now in _series(inspection)
            if any(value is not None for value in self._seen[key])
        ]


def _series(inspection: Inspection) -> Iterator[tuple[Key, float | None]]:
    """Rates of streams; lags and rates by the checkpoint, or by consumers where there is none."""
    for stream in inspection.streams:
        yield (f"stream {stream.name}", "stored/s"), stream.stored_rate
    sources = inspection.checkpoint.sources if inspection.checkpoint else ()
    positions = [(source, position) for source in sources for position in source.positions]
    for source, position in positions:
        where = f"source {source.source}, partition {position.index} of {position.stream}"
        yield (where, "lag"), position.lag
        yield (where, "read/s"), position.read_rate
    for consumer in () if positions else inspection.consumers:
        where = f"consumer {consumer.stream}/{consumer.name}"
        yield (where, "lag"), None if consumer.problems else consumer.lag
        yield (where, "read/s"), consumer.read_rate
