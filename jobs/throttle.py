"""Pauses what Spark publishes, or holds it to a rate, as `pyspark-jetstream throttle` does."""

import sys

from pyspark_jetstream.operations.console.commands import job

if __name__ == "__main__":
    sys.exit(job("throttle"))
