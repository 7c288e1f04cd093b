"""Copies a snapshot of a stream or a bucket, as `pyspark-jetstream backfill snapshot` does."""

import shlex
import sys

from pyspark_jetstream.operations.console.snapshotbackfill import main

if __name__ == "__main__":
    sys.exit(main(program=shlex.join(["python", sys.argv[0]])))
