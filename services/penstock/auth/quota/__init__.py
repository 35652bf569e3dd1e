"""Quota: the rate limits of tenants, their reservations, and the charges that settle reservations."""
