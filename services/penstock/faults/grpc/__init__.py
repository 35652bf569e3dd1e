"""A simulated grpc.aio: channels, servers, the network between them and HTTP/2 flow control, under virtual time."""
