"""Faults of live proofs: kills, outages, cut links, wrong clocks and busy cores, and their runs under a load."""
