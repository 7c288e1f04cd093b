"""`python -m pyspark_jetstream` is the command `pyspark-jetstream`."""

from .operations.main import main

if __name__ == "__main__":
    main()
