"""`spark.readStream`: offsets, batches, consumers of our own, standby; `shared` with others."""
