"""Limits, tenants and usage across regions."""
