"""`df.write` and `df.writeStream`: rows into messages, and each row exactly once."""
