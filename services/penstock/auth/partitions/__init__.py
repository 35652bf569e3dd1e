"""Partitions of tenants: which replica of auth owns which ones, and how they move. No I/O of its own."""
