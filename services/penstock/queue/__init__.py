"""The queue tier: holds admitted tickets in order until a scheduler places them.

Owns the order of waiting tickets, in memory alone, and who of them is refused. Never sees a prompt or a token, never
knows a worker; when it dies, edges enqueue again what they still wait for.
"""
