"""A mesh of local processes: which ones, how they start, where they listen, and how they end.

Owns the plan of processes and ports, the child processes and the note that a running mesh leaves for other commands.
It knows the tiers only as programs with an environment.
"""
