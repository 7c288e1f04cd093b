"""Pauses, pins: the consumers of a query."""
