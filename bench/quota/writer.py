"""A writer for a process of its own: it always has rows, as one long task or as many short ones."""

from __future__ import annotations

import argparse
import itertools
import os
import random
import time
from collections.abc import Iterator

import pyarrow as pa

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.options import parse_sink
from pyspark_jetstream.outbox.messages import Messages
from pyspark_jetstream.publish.publisher import Hooks, publish
from pyspark_jetstream.publish.telemetry import Origin
from pyspark_jetstream.write.rows import MessageBuilder

_BLOCK_ROWS = 10_000
"""As large as the batches that Spark hands to a sink."""


class _OverError(Exception):
    """The time is over."""


def main() -> None:
    """Publishes until the time is over, or it is killed."""
    parser = argparse.ArgumentParser(prog="python -m bench.quota.writer", description=__doc__)
    parser.add_argument("url")
    parser.add_argument("subject")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--size", type=int, default=100, help="bytes of a payload (%(default)s)")
    parser.add_argument("--rows", type=int, help="of a task; without it one task has no end")
    parser.add_argument("--gap", type=float, default=0.2, help="s between tasks, at most")
    arguments = parser.parse_args()
    options = parse_sink({"servers": arguments.url, "publishMode": "async"})
    client = Client(options.connection)
    over_at = time.monotonic() + arguments.seconds

    def watch() -> None:
        if time.monotonic() >= over_at:
            raise _OverError

    def blocks(count: int) -> Iterator[Messages]:
        builder = MessageBuilder(id_prefix=os.urandom(8).hex())
        data = pa.repeat(pa.scalar(bytes(arguments.size)), count)
        batch = pa.record_batch({"subject": pa.array([arguments.subject] * count), "data": data})
        while True:
            yield builder.build(batch)

    generator = random.Random(os.getpid())
    try:
        while True:
            origin = Origin(producer_id=generator.getrandbits(53))
            if arguments.rows is None:
                publish(client, options, blocks(_BLOCK_ROWS), hooks=Hooks(watch), origin=origin)
            else:
                task = itertools.islice(blocks(arguments.rows), 1)
                publish(client, options, task, hooks=Hooks(watch), origin=origin)
                time.sleep(generator.uniform(0, arguments.gap))
    except _OverError:
        pass
    finally:
        client.close()


if __name__ == "__main__":
    main()
