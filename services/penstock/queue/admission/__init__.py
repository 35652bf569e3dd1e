"""Admission: whether a ticket is admitted, by the queue limits and the TTFT targets, and why it is rejected."""
