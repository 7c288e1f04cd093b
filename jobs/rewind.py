"""Lets a streaming query write a batch again, as `pyspark-jetstream rewind` does."""

import sys

from pyspark_jetstream.operations.console.commands import job

if __name__ == "__main__":
    sys.exit(job("rewind"))
