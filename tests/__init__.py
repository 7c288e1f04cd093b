"""
Unit tests (`unit`), tests against a real nats-server (`live`), tests with Spark (`spark`), their
tools (`kits`).

Letters and numbers at the head of a test's docstring (A12, B14, I6, §12.3) are rules of
docs/overload.md.
"""
