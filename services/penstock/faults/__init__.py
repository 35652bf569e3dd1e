"""Faults: the tiers' own processes on one thread, under virtual time, on a network that a seed breaks.

Owns the clock, the network, the disk and the engines of such a mesh, what goes wrong in it, and the judge of what came
of it. Never touches a tier's rules: what runs here is what `python -m penstock.TIER` runs.
"""
