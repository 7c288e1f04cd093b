"""The exporter for Prometheus."""
