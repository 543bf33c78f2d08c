"""naiad: an inference server that queues in one process and runs each model in its own."""

from naiad.compiled import prefer_compiled

__version__ = "0.1.0"

prefer_compiled()
