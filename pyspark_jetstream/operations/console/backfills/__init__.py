"""The programs that copy out of streams, and back into them: their arguments and their output."""
