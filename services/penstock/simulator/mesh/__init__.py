"""The simulated mesh: the tiers' own cores joined by one queue of events, with simulated links and engines."""
