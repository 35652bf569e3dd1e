"""Proofs on real processes of this machine: kills, cancels, drains, freezes, partitions, soak and overload."""
