"""State of a shard per model: the queue of waiting tickets with its forecast, and the availability of the model."""
