"""Traces, metrics, logs and the names they use; deferred calls keep telemetry off the path of a request."""
