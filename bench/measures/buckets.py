"""
Writes of keys and counters beside plain writes and beside nats-py, without Spark.

Writes take turns on one server, each on a stream of its own. Rows have ids and 100 B, those of
counters nothing but their increment. nats-py puts keys and publishes increments a thousand at one
time, as it has no call for several.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

import pyarrow as pa

from tests.kits.servers import DevServer

from ..comparisons import Part, Ratio, compared, of_ratios
from ..others.natspy import connect
from ..writer import SIZE, SUBJECTS, batch, empty, rate_of_task, sink

_TURNS: Final = 3
_TOGETHER: Final = 1_000
_BUCKET: Final = "KEYS"
_KEYS: Final = tuple(subject.removeprefix("pressure.") for subject in SUBJECTS)


class _Kind(NamedTuple):
    """A kind of write."""

    block: pa.RecordBatch
    stream: str = "PRESSURE"
    config: dict[str, Any] = {}
    bucket: str | None = None


_PLAIN: Final = _Kind(batch(SUBJECTS))
_KINDS: Final = {
    "keys": _Kind(
        pa.record_batch(
            {"key": pa.array(_KEYS), "value": pa.repeat(pa.scalar(bytes(SIZE)), len(_KEYS))}
        ),
        f"KV_{_BUCKET}",
        {
            "subjects": [f"$KV.{_BUCKET}.>"], "max_msgs_per_subject": 1, "discard": "new",
            "allow_rollup_hdrs": True, "deny_delete": True,
        },
        _BUCKET,
    ),
    "counters": _Kind(
        pa.record_batch(
            {"subject": pa.array(SUBJECTS), "increment": pa.array([1] * len(SUBJECTS), pa.int64())}
        ),
        config={"allow_msg_counter": True},
    ),
}  # fmt: skip


def part(seconds: float, repeat: int) -> Part:
    """
    The ratios.

    Args:
        seconds: of one write.
        repeat: so many times the turns.
    """
    with DevServer() as server:
        ratios = list(_ratios(server.url, seconds, _TURNS * repeat))
    return of_ratios("keys and counters", ratios)


def _ratios(url: str, seconds: float, turns: int) -> Iterator[Ratio]:
    others = {"keys": _put, "counters": _add}
    for name, kind in _KINDS.items():
        own = partial(_rate, url, kind, seconds)
        plain = partial(_rate, url, _PLAIN, seconds)
        yield compared(name, "plain rows", own, plain, turns)
        other = partial(_rate_of_nats_py, url, kind, others[name], seconds)
        yield compared(name, "nats-py", own, other, turns)


def _rate(url: str, kind: _Kind, seconds: float) -> float:
    """Rows a second of a task that writes this kind."""
    options = sink(url)
    options = replace(options, rows=replace(options.rows, bucket=kind.bucket))
    with empty(url, kind.stream, **kind.config):
        return rate_of_task(options, kind.block, seconds)


def _rate_of_nats_py(
    url: str, kind: _Kind, calls: Callable[[Any], Awaitable[Callable[[int], Any]]], seconds: float
) -> float:
    """Calls a second of nats-py."""

    async def run() -> float:
        client = await connect(url)
        try:
            call = await calls(client.jetstream())
            count, began = 0, time.monotonic()
            while time.monotonic() < began + seconds:
                await asyncio.gather(*map(call, range(_TOGETHER)))
                count += _TOGETHER
            return count / (time.monotonic() - began)
        finally:
            await client.close()

    with empty(url, kind.stream, **kind.config):
        return asyncio.run(run())


async def _put(js: Any) -> Callable[[int], Any]:
    bucket = await js.key_value(_BUCKET)
    data = bytes(SIZE)
    return lambda number: bucket.put(_KEYS[number % len(_KEYS)], data)


async def _add(js: Any) -> Callable[[int], Any]:
    headers = {"Nats-Incr": "1"}
    return lambda number: js.publish(SUBJECTS[number % len(SUBJECTS)], b"", headers=headers)
