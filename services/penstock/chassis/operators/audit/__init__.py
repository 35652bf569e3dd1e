"""The audit log: operators' actions as JSON lines, each with the hash of the line before it."""
