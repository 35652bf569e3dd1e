"""The commands of `penstock` by purpose; each command imports its modules when it runs."""
