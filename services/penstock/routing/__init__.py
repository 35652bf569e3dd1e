"""Routing: the xDS control plane of the Envoy proxies at the front.

It owns what those proxies know: listeners, routes, clusters and the endpoints of the edges, as one immutable snapshot
that has proven itself consistent before anyone sees it. It is never on the path of a request, so its death disturbs no
traffic: a proxy goes on with what it was told last. It never decides who may call or which worker runs a request.
"""
