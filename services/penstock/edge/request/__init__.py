"""A generation request before it is admitted: its values, its public limits and their validation, the caller's
credential, and a cheap lower bound of its cost.
"""
