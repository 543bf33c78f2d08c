"""Memory of a GPU that processes share by CUDA's IPC handles."""
