"""The engine on PyTorch: weights, model, paged attention and KV cache.

Importing a module of this package loads torch; this file imports nothing.
"""
