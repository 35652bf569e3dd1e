"""The listeners of operators and probes, apart from the main port of a process.

Owns who is an operator, what a wrong token costs, and the audit log of operators' actions. It never serves requests of
clients or of other tiers.
"""
