"""Reports to queue shards: the service that tickets received, and the statistics of the worker pool of each model."""
