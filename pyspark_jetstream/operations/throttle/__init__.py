"""The operator of PIP-385: finds producers, pauses them, and names those that do not listen."""
