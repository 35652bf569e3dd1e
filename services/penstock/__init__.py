"""Penstock: a gRPC microservice mesh that serves large language models."""

import os

# Both are read when grpc is first imported, so they have to stand here; whoever set them otherwise is obeyed.
# Without its event engine gRPC reads a socket in the thread that hands messages to the loop, and not in two more: up to
# a quarter less CPU on paced streams, and where cores are short a third of the waits for one.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")
os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # C-core writes lines between our JSON; statuses say it all
