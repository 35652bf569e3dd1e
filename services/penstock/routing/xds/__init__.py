"""The xDS protocol: aggregated streams, subscriptions in the state-of-the-world and the incremental variant, and
their wire messages.
"""
