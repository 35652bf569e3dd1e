"""Raw HTTP/1.1 and HTTP/2 clients that send bytes and frames as they are."""
