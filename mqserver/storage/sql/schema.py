"""The tables of the SQL storage, and the life of a message in them.

A message is a row of state and a row with its body, so that what changes often is small. The state
is the triple (MID, LSF, VSF) of the persistent queues of JPMQ:

- MID, who it is: its writer (`sender`), the branch that stored it (`branch`), and its `key`. A
  reader that wants the messages of one writer, or of one branch, for itself alone can ask so.
- LSF, the log state: `e` enqueued, `c` committed, `d` dequeued.
- VSF, who alone sees it (`vsf`): 0 is everybody (the `*` of JPMQ), a positive number is that
  branch, a negative one is a reservation (its `id` with a minus).

     store          commit of a          take          commit of b
    ───────► (e, a) ───────────► (c, 0) ───────► (d, b) ───────────► gone
                │                 │  ▲ ▲            │
                │ rollback of a   │  │ └────────────┘ rollback of b
                ▼                 ▼  │ drop
               gone            (c, -r) ───────► gone
                          reserve      finish

A branch that takes what it has stored itself makes (e, a) to (d, a), which every end makes gone.
Each arrow is one statement over a set, qualified by the old state. No log of before-images is
needed: the states are the undo log, and the table of branches says which of them are to be undone.

Messages do not refer to their queue by a foreign key: the check would be made once for each message
and not once for each call. Whoever stores holds a share of the queue's row instead, and who deletes
a queue holds it alone.
"""

from __future__ import annotations

import re
from typing import Final

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Connection,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
    inspect,
    literal_column,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.engine import Dialect

from mqserver.errors import WrongFormat

VERSION: Final = 1

ENQUEUED: Final = "e"
COMMITTED: Final = "c"
DEQUEUED: Final = "d"
EVERYBODY: Final = 0

_UNWRITABLE = re.compile("[\x00\x1b\ud800-\udfff]")
_ESCAPE = re.compile("\x1b([0-9a-f]{4})")


def to_text(text: str) -> str:
    """The text with what PostgreSQL cannot hold (NUL, lone surrogates) behind an escape."""
    return _UNWRITABLE.sub(lambda found: f"\x1b{ord(found[0]):04x}", text)


def from_text(text: str) -> str:
    """The text that `to_text` was given."""
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text) if "\x1b" in text else text


class Name(TypeDecorator[str]):
    """A text column that holds every text."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """See `to_text`."""
        return None if value is None else to_text(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> str | None:
        """See `from_text`."""
        return None if value is None else from_text(value)


# SQLite gives numbers by itself only to a column that is called INTEGER; it has 64 bits there too.
_Number = BigInteger().with_variant(Integer, "sqlite")

metadata = MetaData()

version = Table("oncemq_version", metadata, Column("version", Integer, nullable=False))

# How often a node has forced all that was done: see `Database.force`.
node = Table(
    "oncemq_node",
    metadata,
    Column("name", Name, primary_key=True),
    Column("forced", BigInteger, nullable=False),
)

queue = Table(
    "oncemq_queue",
    metadata,
    Column("id", _Number, primary_key=True, autoincrement=True),
    Column("name", Name, nullable=False, unique=True),
    Column("enabled", Boolean, nullable=False),
    Column("prioritized", Boolean, nullable=False),
    Column("messages_max", BigInteger, nullable=False),
    Column("bytes_max", BigInteger, nullable=False),
    sqlite_autoincrement=True,
)

message = Table(
    "oncemq_message",
    metadata,
    Column("key", BigInteger, primary_key=True, autoincrement=False),
    Column("queue", BigInteger, nullable=False),
    # The priority where the queue goes by it, else 0: one index then has the order of every queue.
    Column("rank", BigInteger, nullable=False),
    Column("priority", BigInteger, nullable=False),
    Column("group", BigInteger, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("sender", Name, nullable=False),
    Column("branch", BigInteger, nullable=False),
    Column("lsf", Text, nullable=False),
    Column("vsf", BigInteger, nullable=False),
    # The place in the list of a reservation; nobody reads it for other messages.
    Column("position", BigInteger),
    CheckConstraint("(lsf = 'c' AND vsf <= 0) OR (lsf IN ('d', 'e') AND vsf > 0)", "oncemq_state"),
)
# Written into the statement and not bound, so that the database sees that its index fits.
IS_FREE = message.c.vsf == literal_column("0")
IS_HELD = message.c.vsf != literal_column("0")

Index(
    "oncemq_message_free",
    message.c.queue,
    message.c.rank.desc(),
    message.c.key,
    postgresql_where=IS_FREE,
    sqlite_where=IS_FREE,
)
Index(
    "oncemq_message_held",
    message.c.vsf,
    message.c.position,
    postgresql_where=IS_HELD,
    sqlite_where=IS_HELD,
)

body = Table(
    "oncemq_body",
    metadata,
    Column("message_key", BigInteger, primary_key=True, autoincrement=False),
    Column("payload", LargeBinary, nullable=False),
    Column("digest", BigInteger, nullable=False),
    Column("time_us", BigInteger, nullable=False),
    # A list of {"name": …, "value": …}, because names may repeat and have an order; NULL for none.
    Column(
        "attributes", JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")
    ),
)

branch = Table(
    "oncemq_branch",
    metadata,
    Column("number", _Number, primary_key=True, autoincrement=True),
    Column("id", LargeBinary, nullable=False, unique=True),
    Column("node", Name, nullable=False),
    Column("outcome", SmallInteger, nullable=False),
    # How many actions have changed something. Its owner counts too: see `branches.py`.
    Column("actions", BigInteger, nullable=False),
    Column("has_stored", Boolean, nullable=False),
    Column("has_taken", Boolean, nullable=False),
    Column("has_marks", Boolean, nullable=False),
    Column("recovery", LargeBinary, nullable=False),
    # Grows in the order of ending; NULL as long as `branches` shows it.
    Column("ended", BigInteger),
    # What an operator is shown of a branch that he has ended.
    Column("stored", BigInteger, nullable=False),
    Column("taken", BigInteger, nullable=False),
    sqlite_autoincrement=True,
)
Index(
    "oncemq_branch_shown",
    branch.c.node,
    postgresql_where=branch.c.ended.is_(None),
    sqlite_where=branch.c.ended.is_(None),
)
# By the end first, because every end is one more than the last of all.
Index("oncemq_branch_ended", branch.c.ended, branch.c.node)

branch_mark = Table(
    "oncemq_branch_mark",
    metadata,
    Column("branch", BigInteger, primary_key=True, autoincrement=False),
    Column("application", Name, primary_key=True),
    Column("version", BigInteger, nullable=False),
)

mark = Table(
    "oncemq_mark",
    metadata,
    Column("application", Name, primary_key=True),
    Column("version", BigInteger, nullable=False),
)

consumer = Table(
    "oncemq_consumer",
    metadata,
    Column("name", Name, primary_key=True),
    Column("queue", _Number, ForeignKey(queue.c.id), nullable=False, index=True),
    Column("finished", BigInteger, nullable=False),
    Column("reserved", BigInteger, nullable=False),
)

reservation = Table(
    "oncemq_reservation",
    metadata,
    Column("id", _Number, primary_key=True, autoincrement=True),
    Column("consumer", Name, ForeignKey(consumer.c.name), nullable=False),
    Column("number", BigInteger, nullable=False),
    Column("size", BigInteger, nullable=False),
    UniqueConstraint("consumer", "number"),
    sqlite_autoincrement=True,
)

# Who stands in line for which message: see `waiting.py`.
wait = Table(
    "oncemq_wait",
    metadata,
    Column("ticket", BigInteger, primary_key=True, autoincrement=False),
    Column("key", BigInteger, primary_key=True, autoincrement=False, index=True),
    Column("branch", BigInteger, nullable=False),
    Column("until_s", Float(53), nullable=False),
)

# Keys up to the ceiling may have been given, whatever a crash has made of `last`.
key_counter = Table(
    "oncemq_key_counter",
    metadata,
    Column("last", BigInteger, nullable=False),
    Column("ceiling", BigInteger, nullable=False),
)


def create_or_check(connection: Connection) -> bool:
    """The tables are there in this version; says whether they are new. One caller at a time."""
    if not inspect(connection).has_table(version.name):
        metadata.create_all(connection, checkfirst=False)
        connection.execute(version.insert().values(version=VERSION))
        connection.execute(key_counter.insert().values(last=0, ceiling=0))
        return True
    found = list(connection.scalars(version.select()))
    if found != [VERSION]:
        told = ", ".join(map(str, found)) or "none"
        raise WrongFormat(
            f"the database has version {told} of the tables and this program reads {VERSION}: "
            + ("use a newer program" if max(found, default=0) > VERSION else "convert them first")
        )
    return False
