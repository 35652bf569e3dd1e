"""The scheduler tier: decides which worker runs which ticket, as late as possible.

Owns the capacity of the workers attached to it and the leases that were not started. Never sees a prompt or a token,
keeps no tickets; when it dies its workers attach to another and running streams do not notice.
"""
