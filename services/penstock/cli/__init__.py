"""The `penstock` command: what a person types and what a person sees. Nothing imports it.

It decides nothing about a request. It speaks to the tiers through the public API alone.
"""
