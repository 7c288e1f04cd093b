"""Shows streams, consumers and a query's checkpoint, as `pyspark-jetstream inspect` does."""

import shlex
import sys

from pyspark_jetstream.operations.console.overview import main

if __name__ == "__main__":
    sys.exit(main(program=shlex.join(["python", sys.argv[0]])))
