"""What a Spark job can get wrong before, and in, its rows. Each is one sentence with what to do.

Spark shows the text of these in the Python part of its trace. They pickle, since they are raised in
processes of Spark's own.
"""

from __future__ import annotations

from clients.errors import OnceMQError


class OptionError(OnceMQError):
    """An option is unknown, missing, or has a value that it cannot have."""


class SchemaError(OnceMQError):
    """A schema cannot be written as messages, or read from them. No row was written or read."""


class PayloadError(OnceMQError):
    """A row cannot be a message, or a message cannot be a row of the schema."""
