"""Clients of auth, queue shards and workers: each keeps its streams connected, turns frames into events of a request,
and effects into frames. A lost stream loses frames, never a request.
"""
