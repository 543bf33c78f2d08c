"""Tensors in memory that two processes can see: segments, arenas, leases. Never schedules."""
