"""Pauses what Spark publishes, or holds it to a rate, as `pyspark-jetstream throttle` does."""

import shlex
import sys

from pyspark_jetstream.operations.console.throttle import main

if __name__ == "__main__":
    sys.exit(main(program=shlex.join(["python", sys.argv[0]])))
