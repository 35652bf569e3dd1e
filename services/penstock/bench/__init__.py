"""Load generation: offers requests to a mesh and records the response that each client received.

Owns the drivers (gRPC call, gRPC session, HTTP), the transcript of a request with its checker, and the helpers for
figures, tables, plots and progress that `penstock bench`, the simulator and the proofs share. It retries nothing by
itself: a rejected request is counted as one.
"""
