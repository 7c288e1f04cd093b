"""A writer for a process of its own: it always has rows, as one long task or as many short ones."""

from __future__ import annotations

import argparse
import itertools
import os
import random
import time

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.options import parse_sink
from pyspark_jetstream.publish.context import WriteContext
from pyspark_jetstream.publish.telemetry import Origin
from pyspark_jetstream.write.rows import MessageBuilder

from ..writer import batch, publish

_BLOCK_ROWS = 10_000
"""As large as the batches that Spark hands to a sink."""


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
    options = parse_sink({"servers": arguments.url})
    client = Client(options.connection)
    over_at = time.monotonic() + arguments.seconds

    def is_over() -> bool:
        return bool(time.monotonic() >= over_at)

    # How often `rows` rows: without an end, or once.
    rows, times = (_BLOCK_ROWS, ()) if arguments.rows is None else (arguments.rows, (1,))
    block = batch([arguments.subject] * rows, bytes(arguments.size))
    generator = random.Random(os.getpid())
    try:
        while not is_over():
            builder = MessageBuilder(id_prefix=os.urandom(8).hex())
            context = WriteContext(options, origin=Origin(generator.getrandbits(53)))
            publish(client, context, map(builder.build, itertools.repeat(block, *times)), is_over)
            time.sleep(generator.uniform(0, arguments.gap))
    finally:
        client.close()


if __name__ == "__main__":
    main()
