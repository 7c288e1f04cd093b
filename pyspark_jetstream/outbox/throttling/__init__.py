"""Pauses and rates of subjects: by operators, by the server, and kept by the writer itself."""
