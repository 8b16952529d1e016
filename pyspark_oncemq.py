"""The front door for Spark, which finds modules of such a name: `format("oncemq")`."""

from clients.spark.datasource import OnceMQDataSource as DefaultSource

__all__ = ["DefaultSource"]
