"""Envoy's external authorization: callers of a proxy, the answers to the proxy, and the service that gives them."""
