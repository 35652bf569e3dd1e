"""The worker runs leased tickets on a model and streams their tokens straight to the edges.

It owns the KV blocks and the engine, in a process of its own beside the gRPC front. It never decides which ticket runs
(the scheduler's leases do), never sees text (edges tokenize), and keeps nothing that outlives it: what it ran is
resumed elsewhere from the tokens that the edge already has.
"""
