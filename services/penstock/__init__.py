"""Penstock: a gRPC microservice mesh that serves large language models.

The folder has more than a dozen entries: the six tiers (`edge`, `auth`, `queue`, `scheduler`, `worker`, `routing`), the
`chassis` that they share, the generated contract (`v1`, `mesh`), the `client`, and the packages that run and measure a
mesh (`local_mesh`, `bench`, `proofs`, `faults`, `simulator`, `cli`).
"""

import os

# gRPC reads both at its first import, so they are set here. Values from the environment are kept.
# Without its event engine, gRPC reads a socket in the thread that passes messages to the event loop, and needs two
# threads less: up to a quarter less CPU on paced streams, and a third fewer waits for a core on a busy host.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")
os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # C-core writes plain lines; statuses carry its errors
