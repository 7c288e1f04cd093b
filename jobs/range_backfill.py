"""Copies a range of a stream, as `pyspark-jetstream backfill range` does."""

import shlex
import sys

from pyspark_jetstream.operations.console.rangebackfill import main

if __name__ == "__main__":
    sys.exit(main(program=shlex.join(["python", sys.argv[0]])))
