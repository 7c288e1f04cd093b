"""Tests without a server (`unit`), with a nats-server (`live`), with Spark, and their tools."""
