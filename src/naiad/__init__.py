"""naiad: an inference server that queues in one process and runs each model in its own."""

__version__ = "0.1.0"
