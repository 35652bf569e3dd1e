"""gRPC over HTTP/2 on the event loop of the process, for the streams between tiers.

The wire is that of gRPC (https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md): any gRPC client can call the
server, and the client can call any gRPC server. `grpc.aio` reads sockets in threads of its own, each of which wakes the
next one, and costs three times the CPU per message (docs/decisions/0007-http2-on-the-event-loop.md).
"""
