"""Ends a pause of all consumers of a query, as `pyspark-jetstream resume` does."""

import sys

from pyspark_jetstream.operations.console.commands import job

if __name__ == "__main__":
    sys.exit(job("resume"))
