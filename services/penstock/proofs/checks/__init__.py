"""Checks that several proofs share: transcripts, charges, leaks, and whether the host had CPU to spare. Pure."""
