"""The Python image of `Mq_Custody.idl`: puts that the row of a database carries to a node.

Vocabulary, as `mq.py` is, and three things on which a node, clients and the coordinator must agree:

- Whose a row is. A node has a secret; the row holds its digest, `node_of(secret)`, so that who can
  read the table, or has written the row, can still not ask for it or have it forgotten.
- What the table looks like. One row for each transaction, in the database that commits it:

    otid                 node           content   what it says
    transaction, in hex  32 hex digits  bytes     committed; this is to be put at that node
    transaction, in hex  ''             empty     the fence: it is not committed, and never will be

Both have the same key, so that only one of them can ever be there.

- What a row carries, by the first byte of its content; the rest is its node's own.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Protocol

from idl import databases
from idl.coordination import DatabaseName, DatabaseNotFound, mqOtidList
from idl.cos import HeuristicRollback, otid_t
from idl.databases import TABLE, Kind
from idl.mapping import (
    String,
    Text,
    UnsignedLong,
    UserException,
    exception,
    interface,
    operation,
    struct,
)
from idl.mq import (
    BranchEnded,
    Deadlock,
    DigestMismatch,
    LockTimeout,
    MessageNotFound,
    QueueDisabled,
    QueueFull,
    QueueNotFound,
    RequestOutOfOrder,
    mqBranch,
    mqKeyListList,
    mqWorkList,
)

# The objects of a node and of the coordinator.
CARRIED = "carried"
CUSTODY = "custody"

CARRIED_TABLE = "oncemq_carried"
# In place of a node where the row is a fence.
NOBODY = ""
# What one row may hold; where there is more, the node prepares it, and the row says so.
CONTENT_BYTES_MAX = 64 * 1024
ROWS_AT_ONCE = 100
# All that is put; or the word of the node, which has prepared it, that it will be. In databases:
# never used for something else.
PUTS, PROMISE = b"\x01", b"\x02"

NodeDigest = Annotated[str, Text(64)]
NodeSecret = Annotated[str, Text(64)]
mqDatabaseNameList = tuple[DatabaseName, ...]


@struct()
class mqCarried:
    """A row that is committed: the transaction, and what is put, as the node wrote it."""

    otid: otid_t
    content: bytes


mqCarriedList = tuple[mqCarried, ...]


@exception("Mq_Carried")
class NotCarried(UserException):
    """A database cannot carry this; nothing was done, and the branch may still vote."""

    reason: String


@interface()
class Mq_Carried(Protocol):
    """Puts that are held until a database has committed the row that carries them."""

    @operation(
        QueueDisabled,
        QueueNotFound,
        QueueFull,
        MessageNotFound,
        LockTimeout,
        Deadlock,
        DigestMismatch,
        BranchEnded,
        RequestOutOfOrder,
        NotCarried,
        out=("node", "keys"),
        idempotent=True,
    )
    def hold(
        self, branch: mqBranch, request: UnsignedLong, work: mqWorkList, database: DatabaseName
    ) -> tuple[bytes, NodeDigest, mqKeyListList]: ...

    @operation(HeuristicRollback, idempotent=True)
    def deliver(self, branch: mqBranch, database: DatabaseName) -> None: ...


@interface()
class Mq_Custody(Protocol):
    """Shows nodes the rows that are theirs, and removes those that they have on disk."""

    @operation(out=("databases",), idempotent=True)
    def getCarriers(self) -> tuple[bytes, mqDatabaseNameList]: ...

    @operation(DatabaseNotFound, idempotent=True)
    def getCarried(
        self, database: DatabaseName, secret: NodeSecret, age: UnsignedLong, after: otid_t
    ) -> mqCarriedList: ...

    @operation(DatabaseNotFound, idempotent=True)
    def forgetCarried(
        self, database: DatabaseName, secret: NodeSecret, otids: mqOtidList
    ) -> None: ...


def holds_all(content: bytes) -> bool:
    """Whether the row has all that is put, so that its commit is the end of it, whoever dies."""
    return content.startswith(PUTS)


def node_of(secret: str) -> str:
    """Whose rows they are that this secret opens."""
    return hashlib.blake2b(secret.encode(), digest_size=16).hexdigest()


# --- The table -----------------------------------------------------------------------------------

# When a row was written, not when its transaction was begun: its owner is given a while to deliver.
_COLUMNS = {
    Kind.POSTGRESQL: (
        '(otid varchar(64) COLLATE "C" NOT NULL PRIMARY KEY, node varchar(64) NOT NULL, '
        "content bytea NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp())"
    ),
    Kind.SQLITE: (
        "(otid TEXT NOT NULL PRIMARY KEY, node TEXT NOT NULL, content BLOB NOT NULL, "
        "at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP) WITHOUT ROWID"
    ),
}


def can_carry(kind: Kind) -> bool:
    """Whether databases of this kind carry at all."""
    return kind in _COLUMNS


def carried_table(table: str) -> str:
    """The table beside the one for outcomes, as statements name it."""
    return table.removesuffix(TABLE) + CARRIED_TABLE


def creation(kind: Kind, table: str) -> str:
    """The statement that makes the table where there is none; `table` is the one for outcomes."""
    return f"CREATE TABLE IF NOT EXISTS {carried_table(table)} {_COLUMNS[kind]}"


def permission(table: str, role: str) -> str:
    """The statement that lets a role of PostgreSQL write rows; who reads is no application."""
    granted = databases.permission(Kind.POSTGRESQL, carried_table(table), role)
    return granted.replace("SELECT, INSERT", "INSERT")


def insertion(table: str, place: str) -> str:
    """The statement that writes a row, from otid, node and content; `place` is `%s` or `?`."""
    return (
        f"INSERT INTO {carried_table(table)} (otid, node, content) "
        f"VALUES ({place}, {place}, {place})"
    )
