"""The streams to the other tiers: news from auth, queues and workers become calls of a flight, effects become frames.

Owns who is connected and which passage waits for whom; a link that breaks loses frames, never a request.
"""
