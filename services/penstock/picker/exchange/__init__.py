"""The protocol between a proxy and an endpoint picker. Pure."""
