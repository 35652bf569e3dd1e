"""xDS resources: types, and the listeners, routes, clusters and endpoints that a snapshot is built from.

`types` does not load the Envoy API; this file imports nothing.
"""
