"""
Benchmarks: this package, bare sockets, nats-py and Spark's Kafka at the same work, in one run.

`python -m bench` starts its own server and its own Spark. Nothing here is installed.
"""
