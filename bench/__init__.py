"""
Benchmarks: this package, a bare socket and nats-py at the same work, on one machine, in one run.

`python -m bench` starts its own server and its own Spark and prints what each reaches. Nothing
here is part of what is installed.
"""
