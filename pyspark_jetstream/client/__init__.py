"""One connection to NATS, and the JetStream API on it."""
