"""The HTTP front: connections, bounded bodies, routes, disconnects.

Owns what ASGI gives; the shapes of requests and answers are the `openai` package's.
"""
