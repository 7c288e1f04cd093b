"""A lane: the publishes of a task from offer to PubAck, and the meaning of answers. No I/O."""
