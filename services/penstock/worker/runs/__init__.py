"""Runs on this worker: the run table (a pure state machine), the leases it holds, limits of a start, timers, and the
fan-out of a step's tokens to edge streams. No clock, no I/O.
"""
