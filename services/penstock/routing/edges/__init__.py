"""The edges that proxies route to: parsing an operator's list and resolving its names."""
