"""Takes the pin from whoever holds it at a query's consumers, as `pyspark-jetstream unpin` does."""

import shlex
import sys

from pyspark_jetstream.operations.console.unpinning import main

if __name__ == "__main__":
    sys.exit(main(program=shlex.join(["python", sys.argv[0]])))
