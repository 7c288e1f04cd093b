"""Pauses all consumers of a query for a time, as `pyspark-jetstream pause` does."""

import sys

from pyspark_jetstream.operations.console.commands import job

if __name__ == "__main__":
    sys.exit(job("pause"))
