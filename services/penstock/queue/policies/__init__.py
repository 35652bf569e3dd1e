"""Orders in which waiting tickets are served; each a small class that knows nothing else."""
