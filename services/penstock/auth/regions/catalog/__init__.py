"""The catalog of tenants, keys, prices and routes, which the home region sends to regions that follow it."""
