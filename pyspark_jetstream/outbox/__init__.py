"""Messages that wait to be sent: how urgent, how many may go, what is paused or shed."""
