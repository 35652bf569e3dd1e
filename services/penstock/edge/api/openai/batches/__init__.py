"""Formats of the Files API and the Batch API."""
