"""A layout of partitions beside a stream: planned, made by the server, compared, removed."""
