"""The worker runs leased tickets on a model and streams their tokens directly to the edges.

It owns the engine and its KV blocks, which live in a process of their own beside the gRPC process. The worker never
decides which ticket runs (the scheduler grants leases), never sees text (edges tokenize), and keeps no state across
restarts: another worker resumes its runs from the tokens that the edge has already received.
"""
