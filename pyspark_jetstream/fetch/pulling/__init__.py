"""Reading a range through a consumer, pinned or of one attempt alone: what a task does."""
