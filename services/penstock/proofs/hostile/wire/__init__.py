"""Raw HTTP/1.1 and HTTP/2 clients that send bytes and frames as they are."""

# Of a connection that the peer has closed. uvloop raises RuntimeError for a write to a closed transport.
CONNECTION_ERRORS = (OSError, RuntimeError)
