"""`spark.read`: a range, a snapshot, a Key-Value bucket, one direct get; push-down."""
