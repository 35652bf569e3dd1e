"""The edge: the public API, and the owner of each client's connection, prompt and emitted tokens.

The edge tokenizes prompts and detokenizes answers. It reserves tokens at auth, enqueues a ticket, runs the lease on the
worker that the scheduler chose, and enqueues the request again with the tokens emitted so far if a worker is lost. The
queue decides the order of requests, and the scheduler decides which worker runs each of them.
"""
