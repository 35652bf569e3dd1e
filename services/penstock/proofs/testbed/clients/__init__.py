"""Clients of live proofs: loads with a transcript of every request, and processes of clients."""
