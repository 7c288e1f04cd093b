"""Windows of publishes beside fixed ones, on scripted servers and on real ones."""
