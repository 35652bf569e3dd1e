"""Explanations of recent requests for operators: records, causes, and the Admin service that answers."""
