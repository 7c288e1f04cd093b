"""Programs for operators, on a terminal or without one; one command has them all."""
