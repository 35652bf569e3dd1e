"""Autoscaling: the workers that the work of one shard needs. Pure. Schedulers add up the shards."""
