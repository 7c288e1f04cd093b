"""Copies a range of a stream, as `pyspark-jetstream backfill range` does."""

import sys

from pyspark_jetstream.operations.console.commands import job

if __name__ == "__main__":
    sys.exit(job("backfill range"))
