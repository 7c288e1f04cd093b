"""What a stream holds, and its messages as Arrow: by consumer or direct get. No Spark."""
