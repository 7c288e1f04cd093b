"""Programs that an operator runs beside the queries. No other wing of the package imports them."""
