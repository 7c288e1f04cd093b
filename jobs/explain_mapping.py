"""Shows where a mapping sends subjects, as `pyspark-jetstream explain-mapping` does."""

import sys

from pyspark_jetstream.operations.console.commands import job

if __name__ == "__main__":
    sys.exit(job("explain-mapping"))
