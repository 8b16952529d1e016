"""`Mq_Custody`: shows nodes the committed rows of databases that carry puts to them.

Thin: it translates and passes on. Whoever is let in may ask, and sees and forgets what its secret
opens and nothing else. It keeps nothing: what is forgotten is decided by nodes, which have it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from coordinator.database import Database
from coordinator.database_drivers import DatabaseTrouble
from coordinator.databases import Databases, NotRegistered
from idl import system
from idl.coordination import DatabaseNotFound, mqOtidList
from idl.cos import otid_t
from idl.custody import mqCarried, mqCarriedList, mqDatabaseNameList, node_of
from idl.mapping import InvalidValue
from idl.otids import NULL_OTID, otid_of, split_otid

FORGOTTEN_MAX = 10_000

T = TypeVar("T")


class CustodyServant:
    """See `Mq_Custody`."""

    def __init__(self, identity: bytes, databases: Databases | None) -> None:
        self._identity = identity
        self._databases = databases

    def getCarriers(self) -> tuple[bytes, mqDatabaseNameList]:
        """See `Mq_Custody.getCarriers`; also those that carried when they were last reached."""
        found = [] if self._databases is None else self._databases.every()
        names = [registered.name for registered, seen in found if seen.facts.is_carrier]
        return self._identity, tuple(names)

    def getCarried(self, database: str, secret: str, age: int, after: otid_t) -> mqCarriedList:
        """See `Mq_Custody.getCarried`; the null otid is before all others.

        With `ROWS_AT_ONCE` rows of `CONTENT_BYTES_MAX` an answer has 6.4 MB at most.
        """
        node, behind = _node(secret), "" if after == NULL_OTID else _name(after)
        rows = self._asked(database, lambda asked: asked.carried(node, age / 1000, behind))
        return tuple([mqCarried(otid_of(bytes.fromhex(row.otid)), row.content) for row in rows])

    def forgetCarried(self, database: str, secret: str, otids: mqOtidList) -> None:
        """See `Mq_Custody.forgetCarried`."""
        if len(otids) > FORGOTTEN_MAX:
            raise system.IMP_LIMIT(f"{FORGOTTEN_MAX} rows in one call")
        node, names = _node(secret), [_name(otid) for otid in otids]
        self._asked(database, lambda asked: asked.forget_carried(node, names))

    def _asked(self, name: str, work: Callable[[Database], T]) -> T:
        if self._databases is None:
            raise DatabaseNotFound(name)
        try:
            return work(self._databases.find(name))
        except NotRegistered as unknown:
            raise DatabaseNotFound(name) from unknown
        except DatabaseTrouble as silent:
            raise system.TRANSIENT(str(silent)) from silent


def _node(secret: str) -> str:
    if not secret:
        raise system.BAD_PARAM("a node has a secret, and none was given")
    return node_of(secret)


def _name(otid: otid_t) -> str:
    """As rows have it."""
    try:
        return split_otid(otid)[0].hex()
    except InvalidValue as wrong:
        raise system.BAD_PARAM(str(wrong)) from wrong
