"""`penstock simulate --calibrate`: what the real engine's steps take, and the law that says so.

Owns which steps are measured, how neighbours on the machine are told from the engine, and the fit. Drives the engine as
a worker does: by adding sequences, stepping and cancelling.
"""
