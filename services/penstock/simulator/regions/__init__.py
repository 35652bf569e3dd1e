"""Several regions under virtual time, each a whole mesh: requests that one rejects are offered to another."""
