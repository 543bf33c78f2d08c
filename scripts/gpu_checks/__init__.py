"""What scripts/gpu_check does: proves and measures naiad's work on a GPU, a row for each claim."""
