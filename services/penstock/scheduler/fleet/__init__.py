"""The workers attached to one scheduler: their capacity, cached prefixes, and the choice of the worker for a ticket."""
