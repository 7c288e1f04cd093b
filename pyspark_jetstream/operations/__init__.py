"""What an operator runs beside the queries. Nothing imports it but jobs, bench and tests."""
