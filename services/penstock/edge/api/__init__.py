"""The public API of the edge: gRPC and HTTP listeners that translate to calls of the gateway."""
