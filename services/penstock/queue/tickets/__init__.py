"""The tickets of one shard: the ticket book, transitions, expirations, recent leases and counters.

This folder imports every other folder of the queue; none of them imports it.
"""
