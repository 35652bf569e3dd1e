"""The HTTP server: connections, routes, bounded request bodies, response streams and client disconnects.

The body formats belong to `api.openai`.
"""
