"""The gRPC API `penstock.v1.Inference`: the service, client sessions, and conversion between protobuf messages and
the edge's values.
"""
