"""Proofs under virtual time: overload, recovery, fairness, isolation and work conservation."""
