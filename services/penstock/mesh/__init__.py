"""Contracts between tiers; generated from protos/penstock/mesh/."""
