"""Where a mapping sends subjects."""
