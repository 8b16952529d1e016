"""The transaction service: one process that decides, once, how each transaction ends."""
