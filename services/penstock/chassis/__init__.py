"""The parts that every service shares: lifecycle, config, errors, observability, channels, streams and the gRPC server.

It owns the start, listeners, telemetry, errors and drain of a process. It does not depend on the domain: requests,
tickets and models are unknown to it.
"""
