"""TensorRT engines: one backend for the full, the lean and the RTX runtime."""
