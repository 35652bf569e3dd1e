"""The proof of regions: two whole meshes with Envoys, joined by relays with a delay, under faults and overload."""
