"""Serves the metrics of reads and writes to Prometheus, as `pyspark-jetstream metrics` does."""

import sys

from pyspark_jetstream.operations.console.commands import job

if __name__ == "__main__":
    sys.exit(job("metrics"))
