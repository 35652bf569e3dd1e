"""The regions that proxies send calls to: names and doors, the operators' state, and the order of regions of a call."""
