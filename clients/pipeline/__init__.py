"""Pipelines: from queues through Spark to queues and tables, one transaction for each batch."""
