"""What stands beside this package: bare sockets, nats-py, and the processes they run in."""
