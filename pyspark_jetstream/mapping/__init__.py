"""Subject mapping as nats-server does it, for one subject and for a column of them."""
