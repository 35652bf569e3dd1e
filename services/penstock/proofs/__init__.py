"""Proofs: experiments that measure a promise of Penstock and compare the figure with its goal.

Owns the load it offers, the faults it injects and the verdict. A proof judges the transcripts of clients, the ledger
and the tiers' logs, never a tier's state. A proof whose load or fault was not real is void: neither passed nor missed.
"""
