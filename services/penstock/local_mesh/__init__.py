"""A mesh of local processes: its plan, its start, its drain, and the state file that other commands read.

Owns the plan of processes and ports, the child processes and the state file of a running mesh. It knows the tiers only
as programs with an environment.
"""
