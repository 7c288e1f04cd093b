"""Lanes: three ways to publish the rows of one stream, and the meaning of the answers. No I/O."""
