"""One simulated world: its clock, event loops, processes, disk, engines and clients."""
