"""
What is measured of a server far away: reads, a snapshot and writes through a proxy that passes
bytes on late, and the same through one that does not.

A proxy costs CPU of its own, which is why the reference goes through one as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from ..cases import Case
from ..others.child import Outcome
from ..others.delay import far
from ..payloads import Payloads
from ..spark import Run, Spark
from ..streams import STREAMS, Lane, Layout, Streams, publish_payloads
from .writes import payload_frame

_RTT_S: Final = 0.04
"""20 ms each way."""

_NEAR: Final = "no delay"
_BOUND: Final = "what waits for a round trip"

_PER_TRIGGER: Final = 30_000
_SNAPSHOT: Final = 50_000
"""Subjects; like all numbers here for a million rows that are asked for."""

_MESSAGES: Final = 4
"""Of each of them."""

_WRITTEN: Final = 300_000
_PAYLOAD: Final = 100

_PAYLOADS: Final = Layout("payloads", {"PAYLOADS": "payloads.>"}, (Lane("PAYLOADS", None),), {}, {})

Measured = Callable[[dict[str, Any]], Run]


def wan_cases(spark: Spark, streams: Streams) -> Iterator[Case]:
    """Each through both proxies."""
    with far(streams.url, 0.0) as near, far(streams.url, _RTT_S) as away:

        def case(name: str, run: Measured) -> Case:
            def reference() -> Outcome:
                done = run({"servers": near})
                return Outcome(done.rows, 0, done.seconds, 0.0, done.usage)

            ours = f"wan {name}"
            return Case(ours, _BOUND, lambda: run({"servers": away}), {_NEAR: reference})

        yield from _reads(case, spark, streams)
        yield from _snapshot(case, spark, streams)
        yield from _writes(case, spark, streams)


def _reads(case: Callable[[str, Measured], Case], spark: Spark, streams: Streams) -> Iterator[Case]:
    rows = streams.flights.rows
    with streams.empty(STREAMS):
        streams.publish(rows)
        yield case("read range", lambda to: spark.read_range(STREAMS.options | to, rows))
        for mode, below in (("auto", ""), ("direct", "999999999"), ("own", "0")):
            how = {"directBelow": below} if below else {}

            def read(to: dict[str, Any], how: dict[str, str] = how) -> Run:
                return spark.read_stream(STREAMS.options | how | to, rows)

            yield case(f"read in one batch, {mode}", read)
        bounded = STREAMS.options | {"maxRecordsPerTrigger": str(_PER_TRIGGER)}
        yield case(
            f"read, {_PER_TRIGGER:,} a trigger", lambda to: spark.read_stream(bounded | to, rows)
        )


def _snapshot(
    case: Callable[[str, Measured], Case], spark: Spark, streams: Streams
) -> Iterator[Case]:
    count = max(1, _SNAPSHOT * streams.flights.rows // 1_000_000)
    options = {"stream": "PAYLOADS", "multiLast": ">"}
    with streams.empty(_PAYLOADS):
        publish_payloads(streams.url, _PAYLOAD, count * _MESSAGES, count)
        yield case(
            f"snapshot of {count:,} subjects", lambda to: spark.read_range(options | to, count)
        )


def _writes(
    case: Callable[[str, Measured], Case], spark: Spark, streams: Streams
) -> Iterator[Case]:
    count = max(1, _WRITTEN * streams.flights.rows // 1_000_000)
    frame = payload_frame(spark, Payloads(_PAYLOAD, count))

    def written(to: dict[str, Any]) -> Run:
        with streams.empty(_PAYLOADS):
            run = spark.write(frame, to, count)
            if (stored := streams.last_sequences(_PAYLOADS)[0]) != count:
                raise RuntimeError(f"the stream holds {stored} of {count} rows")
            return run

    yield case("write", written)
