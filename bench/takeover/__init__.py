"""
How long a hot standby takes to go on where a killed query was, and what that time is made of.

`python -m bench.takeover` starts a server and two drivers, kills the one that reads with SIGKILL,
and times the other one, again and again.
"""
