"""The tasks of reads: what Spark sends to an executor."""
