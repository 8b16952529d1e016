"""The storage on a database, SQLite or PostgreSQL, by SQLAlchemy Core.

Each operation is one database transaction. What a message goes through is drawn in `schema.py`;
`branches.py` says what is forced and when, and how many nodes share one database.

    storage         the contract, operation by operation
    queues          queues and what they hold
    messages        storing, taking and looking
    by_key          taking by key, which may have to wait
    reservations    the frozen lists of consumers
    branches        what a branch has done, and how it ends
    branch_table    the statements on the table of branches
    effects         what the end of a branch does to its messages
    waiting         the line for messages that others hold
    selection       a selection as SQL
    rows            a message as rows
    database        transactions, and what errors mean
    sqlite          what only SQLite does so
    postgres        what only PostgreSQL does so
    postgres_server what its server must be, and is told once
    vendor          what these two have to say
    schema          the tables
"""

from mqserver.storage.sql.storage import SqlStorage

__all__ = ["SqlStorage"]
