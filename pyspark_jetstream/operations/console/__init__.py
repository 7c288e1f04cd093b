"""Programs for operators, on a terminal or without one."""
