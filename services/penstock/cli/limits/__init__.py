"""Limits, budgets, models and prices of tenants and keys: options, calls and texts."""
