"""Embeddings, as edges and workers name them."""

EMBEDDING_UNSUPPORTED = "EMBEDDING_UNSUPPORTED"  # reason of an error
