"""Batching: which sequences a step computes, the KV block pool with prefix sharing, and output masks.

Pure; real and simulated engines run the same code.
"""
