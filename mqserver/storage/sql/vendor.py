"""What differs between the databases, as one Protocol. Everything else is written once.

A vendor knows how its database is reached, begins and ends transactions, gives keys, and says in
its own SQL the few things that have no common words. It knows no branch and no reservation.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, TypeAlias

from sqlalchemy import CTE, ColumnElement, Connection, Engine, Executable, Row, Table
from sqlalchemy.dialects.postgresql import Insert as PostgresInsert
from sqlalchemy.dialects.sqlite import Insert as SqliteInsert

from mqserver.errors import MqError
from mqserver.storage.contract import NewMessage

AnyRow: TypeAlias = "Row[*tuple[Any, ...]]"

# How many keys a crash may leave unused. Each time as many are given, one store is forced.
KEYS_AHEAD = 1 << 16

# How long a call waits for another process that is in its way inside the database.
BUSY_S_MAX = 30.0


class Admission(NamedTuple):
    """What a store needs to know of its queue, and the keys of its messages.

    When the keys were given ahead of what is on disk, they may be told only after a forced write.
    """

    queue: int
    is_prioritized: bool
    keys: range
    needs_force: bool


class Claim(Protocol):
    """The right to be the only node with this name; the database knows when its owner dies."""

    def is_held(self) -> bool:
        """Whether it is still ours."""

    def release(self) -> None:
        """Another process may be this node."""


class Vendor(Protocol):
    """One kind of database at one address."""

    # Whether a crash of the database leaves this process alive, with what it remembers.
    can_outlive_it: bool
    errors: tuple[type[Exception], ...]

    def engine(self) -> Engine:
        """A pool of connections, each of which is checked for durability when it is made."""

    def describe(self) -> str:
        """The address, for people, without secrets."""

    def failure(self, error: Exception) -> MqError:
        """What the error of the database means to us."""

    def claim(self, engine: Engine, node: str) -> Claim:
        """This process alone is the node. Raises `StorageLocked`."""

    # --- Transactions

    def turn(self) -> AbstractContextManager[object]:
        """Held during a transaction that writes."""

    def begin(self, connection: Connection, force: bool) -> None:
        """A transaction that writes has begun."""

    def commit(self, connection: Connection, force: bool) -> None:
        """The transaction is committed, and on disk if it is to be forced."""

    def rest(self, connection: Connection) -> None:
        """A restart has little to do."""

    # --- The tables

    def lock_tables(self, connection: Connection) -> None:
        """Nobody else makes or checks the tables during this transaction."""

    def complete_tables(self, connection: Connection) -> None:
        """What only this kind of database needs is there too."""

    def lock_line(self, connection: Connection) -> None:
        """Nobody else changes who waits for whom during this transaction."""

    def lock_messages(self, connection: Connection) -> None:
        """Nobody else changes any message during this transaction."""

    # --- Words

    def insert(self, table: Table) -> PostgresInsert | SqliteInsert:
        """An INSERT that may have a conflict."""

    def now_s(self) -> ColumnElement[float]:
        """The database's own clock, which all nodes share."""

    def next_end(self) -> ColumnElement[int]:
        """A number that grows with each branch that ends."""

    def one_of(self, column: ColumnElement[int], parameter: str) -> ColumnElement[bool]:
        """Whether the column is one of the numbers that are bound to the parameter."""

    def numbers(self, numbers: Sequence[int]) -> object:
        """Numbers, of which there may be very many, as they are bound for `one_of`."""

    def has_attribute(self, parameter: str) -> ColumnElement[bool]:
        """Whether the message has the attribute that is bound to the parameter."""

    def attribute(self, name: str, value: str) -> object:
        """An attribute as it is bound for `has_attribute`."""

    def removal(self, *condition: ColumnElement[bool]) -> tuple[Executable, ...]:
        """Statements after which the messages are gone with their bodies."""

    # --- Messages

    def open_keys(self, connection: Connection) -> None:
        """No key is given again that was given before a crash."""

    def admit(self, connection: Connection, queue: str, count: int) -> Admission | None:
        """The queue, of which a share is held, and new keys for as many messages."""

    def close_keys(self, connection: Connection) -> None:
        """No key need be left unused after an orderly end."""

    def add(
        self,
        connection: Connection,
        admission: Admission,
        branch: int,
        messages: Sequence[NewMessage],
    ) -> None:
        """The messages are stored by the branch, and seen by it alone."""

    def dequeuing(self, picked: CTE) -> Executable:
        """The statement for `dequeue` that takes these messages."""

    def dequeue(
        self, connection: Connection, dequeuing: Executable, values: dict[str, object]
    ) -> Sequence[AnyRow]:
        """The branch `by_branch` of the values holds the messages; as `COLUMNS`, in no order."""
