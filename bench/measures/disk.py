"""
What it costs when a PubAck waits for the disk (`sync_interval: always`): writes without Spark.

Two servers, of which one syncs what it has stored before it answers, take turns; the same rows go
to both, many on their way, and one by one. Where the temporary directory is in memory a sync
costs nothing: `TMPDIR` says where the servers store.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from pyspark_jetstream.publish.options import SinkOptions
from tests.kits.servers import DevServer

from ..comparisons import Part, Ratio, compared, of_ratios
from ..writer import SUBJECTS, batch, empty, rate_of_task, sink

_TURNS: Final = 3

_SYNCED: Final = "jetstream { sync_interval: always }"

_BLOCK: Final = batch(SUBJECTS)

_WAYS: Final[dict[str, dict[str, Any]]] = {
    "many on their way": {},
    "one at a time": {"max_in_flight": 1},
}
"""How rows go out."""


def part(seconds: float, repeat: int) -> Part:
    """
    The ratios.

    Args:
        seconds: of one write.
        repeat: so many times the turns.
    """
    with DevServer() as plain, DevServer(_SYNCED) as synced:
        ratios = list(_ratios(plain.url, synced.url, seconds, _TURNS * repeat))
    return of_ratios("what sync_interval: always costs", ratios)


def _ratios(plain: str, synced: str, seconds: float, turns: int) -> Iterator[Ratio]:
    for way, options in _WAYS.items():
        yield compared(
            f"sync_interval: always, {way}",
            "the default",
            partial(_rate, sink(synced, **options), seconds),
            partial(_rate, sink(plain, **options), seconds),
            turns,
        )


def _rate(options: SinkOptions, seconds: float) -> float:
    (url,) = options.connection.servers
    with empty(url):
        return rate_of_task(options, _BLOCK, seconds)
