"""`python -m pyspark_jetstream` is the command `pyspark-jetstream`."""

import sys

from .operations.console.commands import main

if __name__ == "__main__":
    sys.exit(main(program="python -m pyspark_jetstream"))
