"""Tenants, limits and usage that several regions share: the home region keeps them, and other regions follow it."""
