"""The store in a SQLite file: schema, statements, connection and backend."""
