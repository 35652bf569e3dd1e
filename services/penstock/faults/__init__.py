"""Deterministic simulation testing: the tiers' own services on one thread, under virtual time, with injected faults.

Owns the clock, the network, the disk and the engines of each simulated mesh, the faults that a seed injects, and the
checks of the results. Never changes a tier's rules: a world runs the code that `python -m penstock.TIER` runs.
"""
