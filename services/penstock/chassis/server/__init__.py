"""The gRPC server of a process: serving and draining, interceptors, health, admin, call metrics, and the time limit
on writes to slow clients.
"""
