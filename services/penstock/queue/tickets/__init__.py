"""The tickets of one shard: the ticket book, every transition of a ticket, its due times, recent leases and counters.

Imports every other folder of the queue; none of them imports it.
"""
