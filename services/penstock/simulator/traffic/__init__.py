"""Traffic of a simulation: arrival processes, lengths, shared prefixes and public traces. Pure."""
