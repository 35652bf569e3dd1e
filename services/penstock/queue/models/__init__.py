"""What a shard keeps per model: the queue of waiting tickets with its forecast, and whether the model is available."""
