"""gRPC messages to calls and answers to messages. Pure: bytes in, bytes out, no gRPC library."""
