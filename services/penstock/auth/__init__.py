"""Auth: who a caller is, what it may spend, and what it has spent.

Owns tenants, keys, reservations and the usage ledger, in a store that only one auth process has open. Never sees a
prompt or a token, and never decides when or where a request runs.
"""
