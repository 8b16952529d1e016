"""What clients and operators ask about databases: thin; it translates and passes on.

Registering is for operators; the orb's authorisation says who they are. A transaction that a mark
decides is ended here: the mark counts, whatever became of its owner's session in the meantime.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from coordinator.database_drivers import DatabaseTrouble, NoTable
from coordinator.database_objects import DatabaseObjects, name_of
from coordinator.database_recovery import Seen
from coordinator.databases import Databases, NotRegistered
from coordinator.ledger import Member
from coordinator.live import Enlisted, Live
from coordinator.outcomes import Outcome
from coordinator.registry import Registered
from coordinator.service import Service
from idl import system
from idl.coordination import (
    DatabaseNotFound,
    mqDatabase,
    mqDatabaseInfo,
    mqDatabaseInfoList,
    mqDatabaseList,
    mqDatabaseSettings,
)
from idl.cos import Resource, Status
from idl.databases import COMMITTED, check_place
from idl.mapping import InvalidValue
from idl.toml_files import BadFile
from mqserver.errors import StorageError

audit = logging.getLogger("oncemq.audit")
log = logging.getLogger("oncemq.coordinator")

_COMMITTED = Outcome(Status.COMMITTED)
_ROLLED_BACK = Outcome(Status.ROLLED_BACK, reason="the database has no mark of it")


class DatabaseDesk:
    """Answers for the databases of one coordinator, if it keeps any."""

    def __init__(self, service: Service, objects: DatabaseObjects | None) -> None:
        self._service = service
        self._objects = objects

    # --- For clients

    def every(self) -> mqDatabaseList:
        """See `Mq_Coordinator.listDatabases`."""
        found = [] if self._objects is None else self._objects.databases.every()
        return tuple([_database(registered, seen) for registered, seen in found])

    def by_mark(self, name: str, gtrid: bytes, owner: str, prepared: Sequence[Enlisted]) -> Outcome:
        """How a transaction ended that the mark there decides; it is carried out."""
        try:
            is_committed = self._kept().marks.settle(check_place(name), gtrid)
        except InvalidValue as wrong:
            raise system.BAD_PARAM(str(wrong)) from wrong
        except NotRegistered as unknown:
            raise DatabaseNotFound(name) from unknown
        except DatabaseTrouble as silent:
            raise system.TRANSIENT(str(silent)) from silent
        if not is_committed:
            return _ROLLED_BACK
        if not prepared:
            # Only asked: a decision that names nobody would let the mark be forgotten.
            return _COMMITTED
        live = self._service.transactions.revive(gtrid, owner)
        if live is not None:
            outcome = self.carry_out(live, prepared)
            if outcome.is_committed:
                return outcome
        # It is committed, whatever the log had room for: who is not told will ask for the mark.
        return _COMMITTED

    def is_marked(self, gtrid: bytes) -> bool:
        """Whether a mark commits a transaction of which the log says nothing; nothing is fenced.

        Raises TRANSIENT where a database that may have it says nothing.
        """
        if self._objects is None:
            return False
        silent: DatabaseTrouble | None = None
        for registered, seen in self._objects.databases.every():
            if not seen.facts.identity and seen.is_reachable:
                # It has no table, and so no marks.
                continue
            try:
                if self._objects.databases.find(registered.name).mark(gtrid) == COMMITTED:
                    return True
            except NoTable:
                continue
            except DatabaseTrouble as trouble:
                silent = trouble
        if silent is not None:
            told = f"it may be marked as committed in a database that is silent: {silent}"
            raise system.TRANSIENT(told) from silent
        return False

    def carry_out(self, live: Live, prepared: Sequence[Enlisted]) -> Outcome:
        """The participants of a transaction that has its mark are told to commit, or nothing."""
        told = [each._replace(resource=_NeverRolledBack(each.resource)) for each in prepared]
        # Those given here ask for the mark; those that registered themselves ask for a decision,
        # and a version is nowhere but in the log.
        is_alone = live.parent is None and not live.members and not live.key.version
        live.is_marked = is_alone
        return self._service.family.commit(live, told)

    # --- For operators

    def infos(self) -> mqDatabaseInfoList:
        """See `Mq_TransactionAdmin.listDatabaseInfos`."""
        found = [] if self._objects is None else self._objects.databases.every()
        return tuple([_info(registered, seen) for registered, seen in found])

    def add(self, settings: mqDatabaseSettings, who: str) -> mqDatabaseInfo:
        """See `Mq_TransactionAdmin.addDatabase`."""
        databases = self._databases()
        try:
            registered = Registered(
                settings.name,
                settings.dsn,
                settings.passwordFile,
                settings.passwordEnv,
                settings.schema,
                settings.grace / 1000,
            )
            seen = databases.add(registered)
        except (InvalidValue, BadFile) as wrong:
            raise system.BAD_PARAM(str(wrong)) from wrong
        except StorageError as failed:
            raise system.TRANSIENT(f"it could not be written down: {failed}") from failed
        audit.warning("%s registers database %s: %s", who, registered.name, registered.dsn)
        return _info(registered, seen)

    def remove(self, name: str, who: str) -> None:
        """See `Mq_TransactionAdmin.removeDatabase`."""
        try:
            self._databases().remove(name)
        except NotRegistered as unknown:
            raise DatabaseNotFound(name) from unknown
        except (BadFile, StorageError) as failed:
            raise system.TRANSIENT(f"it could not be written down: {failed}") from failed
        audit.warning("%s removes database %s", who, name)

    def prepare(self, name: str, role: str, who: str) -> mqDatabaseInfo:
        """See `Mq_TransactionAdmin.prepareDatabase`."""
        databases = self._databases()
        try:
            seen = databases.prepare(name, role)
            registered = databases.find(name).registered
        except NotRegistered as unknown:
            raise DatabaseNotFound(name) from unknown
        except InvalidValue as wrong:
            raise system.BAD_PARAM(str(wrong)) from wrong
        except DatabaseTrouble as trouble:
            raise system.TRANSIENT(str(trouble)) from trouble
        audit.warning("%s prepares database %s", who, name)
        return _info(registered, seen)

    def trouble_of(self, member: Member) -> str:
        """What is wrong with the database that this participant is in; empty for all others."""
        name = name_of(member)
        found = [] if self._objects is None or not name else self._objects.databases.every()
        return next((seen.trouble for each, seen in found if each.name == name), "")

    def _databases(self) -> Databases:
        return self._kept().databases

    def _kept(self) -> DatabaseObjects:
        if self._objects is None:
            raise system.NO_IMPLEMENT("this coordinator keeps no databases")
        return self._objects


class _NeverRolledBack:
    """A participant of a marked transaction: the mark has decided, so it is not told otherwise.

    Where the log has no room for the decision the protocol rolls back. This participant does not
    hear of that: it asks for the mark.
    """

    def __init__(self, resource: Resource) -> None:
        self.prepare = resource.prepare
        self.commit = resource.commit
        self.commit_one_phase = resource.commit_one_phase
        self.forget = resource.forget

    def rollback(self) -> None:
        """See `Resource.rollback`."""
        log.warning("a participant of a marked transaction was not told: it will ask for the mark")


def _database(registered: Registered, seen: Seen) -> mqDatabase:
    where = registered.where
    return mqDatabase(
        registered.name,
        where.kind.value,
        where.text,
        registered.table,
        seen.facts.identity,
        seen.facts.is_two_phase,
    )


def _info(registered: Registered, seen: Seen) -> mqDatabaseInfo:
    return mqDatabaseInfo(
        _database(registered, seen),
        seen.is_reachable,
        seen.trouble,
        seen.ours,
        seen.foreign,
        int(seen.oldest_s),
    )
