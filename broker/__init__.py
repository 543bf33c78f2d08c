"""The process that queues, batches and dispatches descriptors. Never touches a tensor's bytes."""
