"""Spark and OnceMQ: partitions as enlisted clients, and a job as one transaction."""
