"""Lines of batches, which a batch process sends as bodies of the OpenAI API."""
