"""Figures for Prometheus and spans for OpenTelemetry."""
