"""Responses that callers retrieve by id: stored sealed in auth's store, continued by another edge if theirs dies."""
