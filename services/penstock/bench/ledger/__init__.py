"""Benchmark of the ledger in PostgreSQL: a month of rows, queries of a tenant's month, and settlements beside them."""
