"""From bytes as they came off the wire to record batches, by the column."""
