"""What a model.py gets from `triton_python_backend_utils`; knows nothing of the worker's loop."""
