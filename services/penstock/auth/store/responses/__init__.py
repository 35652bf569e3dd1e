"""The store of responses: operations in transactions, on SQLite in a file of its own or in the PostgreSQL database."""
