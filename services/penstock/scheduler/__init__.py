"""The scheduler tier: decides which worker runs which ticket, as late as possible.

Owns the capacity of the workers that are attached to it, and the leases that were not started. Never receives a prompt
or a token, and keeps no tickets. When a scheduler dies, its workers attach to another one; running streams continue.
"""
