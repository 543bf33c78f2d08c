"""The engines a worker can run a model with, one file each, imported only in the worker."""
