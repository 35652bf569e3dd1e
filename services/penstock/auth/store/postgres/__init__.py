"""The store in PostgreSQL: schema, statements, partitions with fencing epochs, and backend."""
