"""Credit: the tickets that each queue shard may offer, in one order over all shards, with express slots kept free."""
