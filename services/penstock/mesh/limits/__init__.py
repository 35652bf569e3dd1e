"""Ranges of all fields that tiers send to each other, and the checks of inbound frames that are compiled from them.

`table.py` is the table, by message and field. It is pure: it knows protobuf descriptors, but no stream and no clock.
"""
