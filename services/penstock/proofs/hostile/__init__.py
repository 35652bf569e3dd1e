"""Attacks on every port of a mesh beside an honest load, and the judge of what they gain and cost.

Owns raw clients that send what no library would send, a corpus of short cases, attacks that last, and the verdict. All
of it is bounded in count, bytes and time, and connects to loopback addresses only.
"""
