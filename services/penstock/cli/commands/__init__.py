"""Declarations of the commands of `penstock`, by purpose. Each command imports its modules when it runs."""
