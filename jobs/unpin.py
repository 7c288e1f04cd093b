"""Takes the pin from whoever holds it at a query's consumers, as `pyspark-jetstream unpin` does."""

import sys

from pyspark_jetstream.operations.console.commands import job

if __name__ == "__main__":
    sys.exit(job("unpin"))
