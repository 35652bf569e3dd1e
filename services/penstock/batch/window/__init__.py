"""The window: how many lines of batches may be in the mesh. Pure."""
