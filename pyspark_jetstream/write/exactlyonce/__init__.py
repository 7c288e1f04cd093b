"""Exactly once: a query's records of its earlier attempts and batches, and of their targets."""
