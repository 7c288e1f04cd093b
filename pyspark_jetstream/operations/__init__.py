"""What an operator runs beside the queries. Nothing of the package's other wings imports it."""
