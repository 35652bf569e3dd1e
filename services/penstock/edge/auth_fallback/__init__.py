"""Fail-open operation while auth is unreachable: the outage detector, the cache of recently admitted identities with
their token grants, and the reservations that auth records once it is reachable.
"""
