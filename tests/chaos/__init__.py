"""A streaming query that copies one stream into another, exactly once, amid random faults."""
