"""Penstock: a gRPC microservice mesh that serves large language models."""

import os

# Both are read when grpc is first imported, so they have to stand here; whoever set them otherwise is obeyed.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client")  # a quarter less client CPU on paced streams
os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # C-core writes lines between our JSON; statuses say it all
