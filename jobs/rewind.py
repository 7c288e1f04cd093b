"""Lets a streaming query write a batch again, as `pyspark-jetstream rewind` does."""

import shlex
import sys

from pyspark_jetstream.operations.console.rewinding import main

if __name__ == "__main__":
    sys.exit(main(program=shlex.join(["python", sys.argv[0]])))
