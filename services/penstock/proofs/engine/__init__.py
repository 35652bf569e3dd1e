"""The proof of the engine: one process, no mesh, the model that workers serve."""
