"""Long-lived bidirectional streams between processes: the client end (Link), the server end (Peer), the endpoint code
they share, and the bounded outbox.
"""
