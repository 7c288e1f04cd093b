"""Lanes: three ways to publish the rows of one stream, and what their answers mean. No I/O."""
