"""Observability of requests: the metrics, spans and log line of each, written once it has ended."""
