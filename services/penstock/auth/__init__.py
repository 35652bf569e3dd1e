"""Auth: identifies callers, limits the tokens that tenants may spend, and records the tokens that they have spent.

Owns tenants, keys, reservations and the usage ledger, in a store that one auth process at a time has open. Never
receives a prompt or a token, and never decides when or where a request runs.
"""
