"""Makes partitions of a stream that exists, as `pyspark-jetstream partition` does."""

import sys

from pyspark_jetstream.operations.console.commands import job

if __name__ == "__main__":
    sys.exit(job("partition"))
