"""The parts that every service shares: lifecycle, config, errors, observability, channels, streams and the gRPC server.

It owns how a process starts, listens, is observed, fails and drains. It knows nothing of the domain: neither requests
nor tickets nor models.
"""
