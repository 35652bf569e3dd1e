"""The queue tier: holds admitted tickets in order until a scheduler places them.

Owns the order of waiting tickets, in memory only, and decides which tickets are rejected. Never receives a prompt or a
token, and does not know the workers. When a shard dies, edges enqueue the tickets that they still wait for again.

Besides the modules that every tier has, this folder holds the values and tables that several of its folders use: the
ticket, the effects, the errors, the scheduler sessions, the poison requests and the accounting of running tickets.
"""
