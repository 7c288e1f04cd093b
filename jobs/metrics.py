"""Serves the metrics of reads and writes to Prometheus, as `pyspark-jetstream metrics` does."""

import shlex
import sys

from pyspark_jetstream.operations.console.exporter import main

if __name__ == "__main__":
    sys.exit(main(program=shlex.join(["python", sys.argv[0]])))
