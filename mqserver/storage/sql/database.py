"""Transactions on the database, and what its errors mean.

The only way to it: every statement of the storage runs inside `Database.read` or `Database.write`.
What goes wrong there comes out as an error of `mqserver.errors`, with the address and without
secrets or contents. A lost connection fails the call that used it; the next call gets a new one.
A write that failed on the disk fails every later call too, because nobody knows what is there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import URL, Connection, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from mqserver.errors import MqError, StorageError, StorageFailed
from mqserver.storage.sql import schema
from mqserver.storage.sql.sqlite import Sqlite
from mqserver.storage.sql.vendor import Claim, Vendor


@dataclass
class Transaction:
    """A transaction that writes. It may turn out on the way that it has to be forced."""

    connection: Connection
    force: bool


class Database:
    """An open database with our tables, in which this process alone is the node."""

    def __init__(self, url: str, node: str) -> None:
        self.vendor = _vendor(url)
        self._node = node
        # What goes past SQLAlchemy to the driver comes back without its wrapping.
        self._errors: tuple[type[Exception], ...] = (SQLAlchemyError, *self.vendor.errors)
        self._failure: StorageFailed | None = None
        self._claim: Claim | None = None
        self._is_claim_in_doubt = True
        self._claiming = threading.Lock()
        counted = self.vendor.insert(schema.node).values(name=node, forced=1)
        self._counting_force = counted.on_conflict_do_update(
            index_elements=[schema.node.c.name], set_={"forced": schema.node.c.forced + 1}
        )
        self._engine = self.vendor.engine()
        try:
            self._make_tables()
            self._keep_claim()
        except BaseException:
            self._engine.dispose()
            raise

    def close(self) -> None:
        """No connection is open any more."""
        self._release_claim()
        self._engine.dispose()

    @contextmanager
    def write(self, force: bool = True) -> Iterator[Transaction]:
        """A transaction, committed at the end of the block and on disk then if it is to be forced.

        A block that rolls back its connection has changed nothing, as has one that raises.
        """
        with self._guarded(), self.vendor.turn(), self._connected() as connection:
            transaction = Transaction(connection, force)
            self.vendor.begin(connection, force)
            yield transaction
            if connection.in_transaction():
                self.vendor.commit(connection, transaction.force)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Statements that change nothing, each of which sees what is committed."""
        with self._guarded(), self._connected() as connection:
            yield connection.execution_options(isolation_level="AUTOCOMMIT")

    def force(self) -> None:
        """All that was committed is on disk."""
        with self.write() as transaction:
            # A commit waits for the disk only if it has changed something.
            transaction.connection.execute(self._counting_force)

    def close_keys(self) -> None:
        """No key need be left unused after this orderly end."""
        with self.write() as transaction:
            self.vendor.close_keys(transaction.connection)

    def rest(self) -> None:
        """A restart has little to do."""
        # Nobody writes meanwhile, or the database would have to ask again and again for a pause.
        with self.vendor.turn(), self.read() as connection:
            self.vendor.rest(connection)

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        """A connection of the pool, to which it goes back unless something failed in it."""
        with self._engine.connect() as connection:
            try:
                yield connection
            except MqError:
                raise
            except BaseException:
                # Nobody knows what such a connection still holds, so the database lets go of it.
                connection.invalidate()
                raise

    # --- Opening

    def _make_tables(self) -> None:
        with self._translated(), self.vendor.turn(), self._engine.connect() as connection:
            self.vendor.begin(connection, force=True)
            self.vendor.lock_tables(connection)
            if schema.create_or_check(connection):
                self.vendor.complete_tables(connection)
            self.vendor.open_keys(connection)
            self.vendor.commit(connection, force=True)

    def _keep_claim(self) -> None:
        """This process is still the node, or is it again."""
        with self._claiming, self._translated():
            if not (self._claim is not None and self._claim.is_held()):
                self._release_claim()
                self._claim = self.vendor.claim(self._engine, self._node)
            self._is_claim_in_doubt = False

    def _release_claim(self) -> None:
        claim, self._claim = self._claim, None
        if claim is not None:
            claim.release()

    # --- Errors

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        if self._failure is not None:
            raise StorageFailed(*self._failure.args)
        if self._is_claim_in_doubt:
            self._keep_claim()
        with self._translated():
            yield

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except self._errors as error:
            failure = self.vendor.failure(error)
            if isinstance(failure, StorageFailed):
                self._failure = failure
            # Perhaps all connections are gone, and with them what says that we are the node.
            self._is_claim_in_doubt = True
            raise failure from error


def _vendor(text: str) -> Vendor:
    url = _parse(text)
    kind = url.get_backend_name()
    if kind == "sqlite":
        return Sqlite(url)
    if kind in ("postgresql", "postgres"):
        return _postgres()(url)
    raise StorageError(
        f"there is no storage for databases of the kind {kind!r}: the address begins with "
        "sqlite:/// or postgresql://"
    )


def _parse(text: str) -> URL:
    try:
        return make_url(text)
    except (ArgumentError, ValueError):
        # Neither the text nor the error is passed on, because there may be a password in them.
        raise StorageError(
            "the address of the database cannot be read: it looks like "
            "postgresql://user@host/database or sqlite:////path/to/file.db"
        ) from None


def _postgres() -> Callable[[URL], Vendor]:
    try:
        from mqserver.storage.sql.postgres import Postgres
    except ImportError as error:
        raise StorageError(
            "PostgreSQL needs the driver psycopg: pip install 'oncemq[postgres]'"
        ) from error
    return Postgres
