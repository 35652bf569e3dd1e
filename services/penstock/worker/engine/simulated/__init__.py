"""The simulated engine: the real batch with step times from a model instead of a forward pass.

Loads no torch and no numpy.
"""
