"""Consumers shared with other readers (`overflow`, `prioritized`): claims, acks, dead letters."""
