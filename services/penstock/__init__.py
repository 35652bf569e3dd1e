"""Penstock: a gRPC microservice mesh that serves large language models."""
