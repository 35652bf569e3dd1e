"""The store of the batch tier: rows of files, batches, chunks and results in a database, contents beside it."""
