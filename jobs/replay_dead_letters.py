"""Publishes dead letters as the rows they were, as `pyspark-jetstream replay` does."""

import shlex
import sys

from pyspark_jetstream.operations.console.replay import main

if __name__ == "__main__":
    sys.exit(main(program=shlex.join(["python", sys.argv[0]])))
