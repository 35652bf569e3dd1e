"""Load generation: offers requests to a mesh and records what each client saw.

Owns the drivers (gRPC call, gRPC session, HTTP), the transcript of a request and the report of percentiles. `penstock
bench`, the simulator and the proofs share it. It retries nothing: a rejected request is counted as one.
"""
