"""Clients of a world: requests over the SDK, and stored responses and batches over HTTP."""
