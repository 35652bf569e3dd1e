"""Routing: the xDS control plane of the Envoy proxies in front of the edges.

It owns the configuration of those proxies (listeners, routes, clusters and the endpoints of the edges) as one immutable
snapshot, which is checked for consistency before it is served. Routing is never on the path of a request: if it dies,
traffic continues, because a proxy keeps its last configuration. It decides neither about admission nor about placement.
"""
