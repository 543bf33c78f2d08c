"""The front door: KServe v2 over HTTP and gRPC, translated into the native protocol.

Holds no rules of its own: what a request may be, the broker decides.
"""
