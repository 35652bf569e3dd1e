"""Identity: tenants, their API keys and the salt of their prefix hashes."""
