"""Shows where a mapping sends subjects, as `pyspark-jetstream explain-mapping` does."""

import shlex
import sys

from pyspark_jetstream.operations.console.explanation import main

if __name__ == "__main__":
    sys.exit(main(program=shlex.join(["python", sys.argv[0]])))
