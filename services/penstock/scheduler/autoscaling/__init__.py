"""Autoscaling: the workers per model that all shards need, and the service by which KEDA reads them."""
