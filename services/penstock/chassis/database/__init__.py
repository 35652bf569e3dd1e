"""Connections and transactions on SQLite and PostgreSQL, for tiers that keep state. Knows no table of a tier."""
