"""The metrics process: what Prometheus reads, put together from the broker's raw counters.

Owns names, labels and the text format; counts nothing itself and decides nothing.
"""
