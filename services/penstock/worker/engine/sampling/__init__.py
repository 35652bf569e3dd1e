"""Sampling: from logits to tokens with counter-based Gumbel noise.

`splitmix64` needs neither numpy nor torch; this file imports nothing.
"""
