"""Scheduling policies: the order in which waiting tickets are dispatched (priority classes, fair share between
tenants, burst credit, ticket order) and the data structures that they use.
"""
