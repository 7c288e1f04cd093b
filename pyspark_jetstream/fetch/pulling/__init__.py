"""Consumers that tasks pull ranges from: each is one attempt's own."""
