"""Publishes dead letters as the rows they were, as `pyspark-jetstream replay` does."""

import sys

from pyspark_jetstream.operations.console.commands import job

if __name__ == "__main__":
    sys.exit(job("replay"))
