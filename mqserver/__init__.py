"""The queue server: one process that keeps queues and takes part in transactions."""
