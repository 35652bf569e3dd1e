"""Lines of batches: what a client sends, and the rows that it receives. Pure."""
