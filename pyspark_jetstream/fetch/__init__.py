"""What a stream holds, and its messages as Arrow: by pinned consumer or direct get. No Spark."""
