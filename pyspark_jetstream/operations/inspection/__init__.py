"""What `inspect` and `unpin` know: the server, a checkpoint, and what of it is a problem."""
