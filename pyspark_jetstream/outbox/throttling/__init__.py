"""Subjects that wait: operators pause them, or the server has no room for them."""
