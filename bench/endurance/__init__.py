"""
One query for an hour: what every process and the server hold, sampled, and whether it grows.

`python -m bench.endurance` starts a server, Spark, a publisher and a checker of its own. It ends
with status 1 when a message is lost or doubled, or when something has grown.
"""
