"""
What a quota lets through: messages stored in each second, under `pyspark-jetstream throttle quota`.

`python -m bench.quota` starts a server, the program and writers that always have rows, each in a
process of its own, and reads the timestamps of what the stream has stored.
"""
