"""The state of a stream, and its messages as Arrow: by consumer or direct get. No Spark."""
