"""A checkpoint beside what the server says."""
