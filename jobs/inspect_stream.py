"""Shows streams, consumers and a query's checkpoint, as `pyspark-jetstream inspect` does."""

import sys

from pyspark_jetstream.operations.console.commands import job

if __name__ == "__main__":
    sys.exit(job("inspect"))
