"""Copies a snapshot of a stream or a bucket, as `pyspark-jetstream backfill snapshot` does."""

import sys

from pyspark_jetstream.operations.console.commands import job

if __name__ == "__main__":
    sys.exit(job("backfill snapshot"))
