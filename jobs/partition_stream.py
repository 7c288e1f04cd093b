"""Makes partitions of a stream that exists, as `pyspark-jetstream partition` does."""

import shlex
import sys

from pyspark_jetstream.operations.console.partitions import main

if __name__ == "__main__":
    sys.exit(main(program=shlex.join(["python", sys.argv[0]])))
