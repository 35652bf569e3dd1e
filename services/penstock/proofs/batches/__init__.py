"""The proof `batch`: batches under faults, cancelled, and beside interactive load, on a mesh of real processes."""
