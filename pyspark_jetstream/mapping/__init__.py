"""Where a subject goes: nats-server's mappings, for one subject and for a column."""
