"""The dashboard with data in it: queries under pressure, the exporter, and a real Prometheus."""
