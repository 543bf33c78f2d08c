"""The schemas of the gRPC front door and their generated form; no code of ours beside them."""
