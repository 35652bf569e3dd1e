"""The header in which a proxy tells an edge when it received a request."""

HEADER = "x-penstock-proxy-time"  # Unix s with microseconds. A proxy removes what its clients send under this name.
