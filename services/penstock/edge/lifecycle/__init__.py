"""The life of one request, from arrival to settlement: a pure state machine that takes events and returns effects,
the table of active requests, and the sinks that deliver a response to its client. No network.
"""
