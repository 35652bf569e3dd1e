"""`penstock scorecard`: proofs on real processes, each a figure, its goal and whether it was met.

Owns the load it offers, the faults it makes and the verdict. A proof judges what clients saw, the ledger and the tiers'
logs, never a tier's inside; one whose load or fault was not real is void, which is neither a pass nor a miss.
"""
