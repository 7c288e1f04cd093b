"""Bytes off the wire made record batches, by the column."""
