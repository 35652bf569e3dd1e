"""Envoy's external authorization over HTTP: callers of a proxy, the answers, and the listener that gives them."""
