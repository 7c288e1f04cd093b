"""Messages that wait to be sent: priorities, limits, pauses and shedding."""
