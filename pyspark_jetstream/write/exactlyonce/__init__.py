"""Exactly once: what a query knows of its earlier attempts and batches, and of its targets then."""
