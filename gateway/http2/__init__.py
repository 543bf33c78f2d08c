"""HTTP/2 of a server, as far as gRPC uses it. Pure: bytes in, bytes out, no socket and no clock."""
