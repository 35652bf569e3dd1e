"""Limits of the machine and its control groups: CPU cores and memory that an engine may use."""
