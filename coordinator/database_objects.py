"""The objects that stand for databases in transactions: thin; they translate and pass on.

    database/NAME/GTRID/BRANCH   Resource: a branch that is prepared in the database
    database-settler/NAME        Mq_Settler: has the commits of many branches done at once
    marked/NAME/GTRID/BRANCH     RecoveryCoordinator: asked by BRANCH, which the mark decides about;
                                 NAME is a database, or a node that has decided

None of them is kept. A branch is only ended the way that was decided here, whoever asks for it. One
that has a settler is committed a moment after the decision, unless its owner was faster, who has
the connection at hand; so nobody waits for the coordinator's.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from functools import partial

from coordinator.database import CommittedAlone, Database, Times
from coordinator.database_drivers import Busy, DatabaseTrouble, NoSuchBranch
from coordinator.database_kinds import open_link
from coordinator.databases import Databases
from coordinator.deciding_nodes import DecidingNode
from coordinator.fates import Verdict, is_ours
from coordinator.ledger import Member
from coordinator.live import Enlisted, Live
from coordinator.marks import Keeper, Marks
from coordinator.registry import Registry
from coordinator.service import Service
from coordinator.verdicts import Verdicts
from idl import system
from idl.call import Address, call_here
from idl.coordination import Mq_Settler, mqOtidList
from idl.cos import (
    HeuristicCommit,
    NotPrepared,
    RecoveryCoordinator,
    Resource,
    Status,
    Vote,
)
from idl.databases import (
    DATABASE,
    DATABASE_SETTLER,
    BranchId,
    check_name,
    check_place,
    mark_of,
)
from idl.mapping import InvalidValue
from idl.otids import MARKED, otid_of, split_member, split_otid
from idl.places import is_node, node_at
from mqserver.storage.disk import Disk

LOST_KEPT = 10_000
LOOPBACK = "127.0.0.1"
_OF_DATABASES = f"PYRO:{DATABASE}/"


def open_databases(
    service: Service,
    disk: Disk,
    randomness: Callable[[int], bytes],
    times: Times | None = None,
) -> DatabaseObjects:
    """The databases in the registry of this directory are looked after.

    Before the service is started, so that what was decided is delivered; `publish` comes after.
    """
    times = times or Times()
    verdicts = Verdicts(service.transactions, service.log)
    opener = partial(open_link, limits=times.limits)
    databases = Databases(Registry(disk), opener, verdicts, service.tasks, randomness, times)

    def roll_back(gtrid: bytes) -> None:
        live = service.transactions.at_work(gtrid)
        if live is None and verdicts.of(BranchId(gtrid, "-")) is Verdict.UNDECIDED:
            known = service.transactions.find(gtrid)
            live = known if isinstance(known, Live) else None
        if live is not None:
            service.family.rollback(live, "it was not marked as committed in time")

    def find(place: str) -> Keeper:
        if is_node(place):
            call = call_here()
            # Outside of calls, by a branch that was found in a database.
            host = LOOPBACK if call is None else call.peer_host
            return DecidingNode(service.orb, Address(*node_at(place)), host)
        return databases.find(place)

    marks = Marks(find, verdicts, service.tasks.now, roll_back)
    objects = DatabaseObjects(databases, verdicts, marks)
    service.at_home = objects.enlisted
    databases.start(marks.settle)
    return objects


class DatabaseObjects:
    """Makes the objects of databases. May be used from any thread."""

    def __init__(self, databases: Databases, verdicts: Verdicts, marks: Marks) -> None:
        self.databases = databases
        self.verdicts = verdicts
        self.marks = marks
        self._lock = threading.Lock()
        # Branches that a settler found not to be prepared: who is told to commit them, looks.
        self._lost: dict[BranchId, None] = {}

    def publish(self, service: Service) -> None:
        """They can be called."""
        service.orb.publish_family(DATABASE, self.resource, Resource)
        service.orb.publish_family(DATABASE_SETTLER, self.settler, Mq_Settler)
        service.orb.publish_family(MARKED, self.marked, RecoveryCoordinator)

    def close(self) -> None:
        """Nobody looks after databases any more."""
        self.databases.close()

    def enlisted(self, member: Member) -> Enlisted | None:
        """The participant with objects that are called directly; None for one that is elsewhere.

        By whatever address somebody reaches us: what has our identity in its name is ours.
        """
        if not member.resource.startswith(_OF_DATABASES):
            return None
        rest = member.resource.removeprefix(_OF_DATABASES).partition("@")[0]
        name, branch = _split(rest)
        if not is_ours(branch, self.verdicts.identity):
            return None
        if member.settler.partition("@")[0] != f"PYRO:{DATABASE_SETTLER}/{name}":
            resource = ResourceServant(self, name, branch)
            return Enlisted(member._replace(settler=""), resource, None)
        resource = ResourceServant(self, name, branch, True)
        return Enlisted(member, resource, SettlerServant(self, name))

    def resource(self, rest: str) -> ResourceServant:
        """The resource of a branch."""
        return ResourceServant(self, *_split(rest))

    def settler(self, rest: str) -> SettlerServant:
        """The settler of a database."""
        return SettlerServant(self, check_name(rest))

    def marked(self, rest: str) -> MarkedServant:
        """Whom a branch of a marked transaction asks."""
        return MarkedServant(self, *_split(rest, check_place))

    def note_lost(self, branches: list[BranchId]) -> None:
        """They were to be committed, and are not prepared."""
        with self._lock:
            self._lost.update(dict.fromkeys(branches))
            while len(self._lost) > LOST_KEPT:
                del self._lost[next(iter(self._lost))]

    def is_lost(self, branch: BranchId) -> bool:
        """Whether a settler found so."""
        return branch in self._lost


def name_of(member: Member) -> str:
    """The database that a participant is a branch in; empty for any other."""
    if not member.resource.startswith(_OF_DATABASES):
        return ""
    return member.resource.removeprefix(_OF_DATABASES).partition("/")[0]


def _split(rest: str, check: Callable[[str], str] = check_name) -> tuple[str, BranchId]:
    name, _, member = rest.partition("/")
    gtrid, branch = split_member(member)
    if not branch:
        raise InvalidValue(f"object name {rest[:60]!r} names no branch")
    return check(name), BranchId(gtrid, branch)


def _not_now(trouble: DatabaseTrouble) -> system.TRANSIENT:
    return system.TRANSIENT(str(trouble))


class ResourceServant:
    """See `Resource`."""

    def __init__(
        self, objects: DatabaseObjects, name: str, branch: BranchId, has_settler: bool = False
    ) -> None:
        self._objects = objects
        self._name = name
        self._branch = branch
        self._has_settler = has_settler
        # What is left to the settler needs no thread of its own.
        self.answers_at_once = ("commit",) if has_settler else ()

    def prepare(self) -> Vote:
        """Refused: only who works in a database can prepare its branch."""
        raise system.NO_IMPLEMENT("a branch in a database is prepared by who works there")

    def commit_one_phase(self) -> None:
        """Refused, as `prepare` is."""
        raise system.NO_IMPLEMENT("a branch in a database is ended by who works there")

    def commit(self) -> None:
        """See `Resource.commit`."""
        self._check(Verdict.COMMITTED)
        if self._has_settler and not self._objects.is_lost(self._branch):
            # The decision is kept until it is settled, so that this may wait.
            return
        try:
            self._objects.databases.find(self._name).commit(self._branch)
        except NoSuchBranch:
            raise NotPrepared() from None
        except DatabaseTrouble as trouble:
            raise _not_now(trouble) from trouble

    def rollback(self) -> None:
        """See `Resource.rollback`."""
        self._check(Verdict.ROLLED_BACK)
        mark, gtrid = mark_of(self._branch.branch), self._branch.gtrid
        try:
            if mark and self._objects.marks.settle(mark, gtrid):
                raise system.INVALID_TRANSACTION(f"the mark in {mark} has committed it")
            self._objects.databases.find(self._name).rollback(self._branch)
        except CommittedAlone:
            raise HeuristicCommit() from None
        except DatabaseTrouble as trouble:
            raise _not_now(trouble) from trouble

    def forget(self) -> None:
        """See `Resource.forget`. Nothing is kept there that could be forgotten."""

    def _check(self, wanted: Verdict) -> None:
        verdict = self._objects.verdicts.of(self._branch)
        if verdict is not wanted:
            raise system.INVALID_TRANSACTION(f"what was decided about it: {verdict.value}")


class SettlerServant:
    """See `Mq_Settler`."""

    def __init__(self, objects: DatabaseObjects, name: str) -> None:
        self._objects = objects
        self._name = name

    def commitBranches(self, branches: mqOtidList) -> mqOtidList:
        """See `Mq_Settler.commitBranches`; they are committed when they are settled."""
        named = zip(branches, self._to_be_committed(branches), strict=True)
        return tuple([otid for otid, branch in named if self._objects.is_lost(branch)])

    def settle(self, branches: mqOtidList) -> None:
        """See `Mq_Settler.settle`."""
        wanted = self._to_be_committed(branches)
        try:
            lost = self._objects.databases.find(self._name).settle(wanted)
        except DatabaseTrouble as trouble:
            raise _not_now(trouble) from trouble
        if lost:
            self._objects.note_lost(lost)
            raise NotPrepared()

    def getEnded(self, branches: mqOtidList) -> mqOtidList:
        """See `Mq_Settler.getEnded`; only of branches that a node decides about."""
        wanted = [branch for branch in self._named(branches) if is_node(mark_of(branch.branch))]
        try:
            database = self._objects.databases.find(self._name)
            ended = database.ended(wanted)
            for branch in set(wanted).difference(ended):
                self._finish(database, branch)
        except DatabaseTrouble as trouble:
            raise _not_now(trouble) from trouble
        return tuple([otid_of(branch.gtrid, branch.branch) for branch in ended])

    def _finish(self, database: Database, branch: BranchId) -> None:
        """Its owner has lost its connection, or is gone; the node is asked, not who calls."""
        decided = self._objects.marks.answer(mark_of(branch.branch), branch)
        with contextlib.suppress(NoSuchBranch, Busy):
            if decided is Status.COMMITTED:
                database.commit(branch)

    def _named(self, branches: mqOtidList) -> list[BranchId]:
        try:
            return [BranchId(*split_otid(otid)) for otid in branches]
        except InvalidValue as wrong:
            raise system.BAD_PARAM(str(wrong)) from wrong

    def _to_be_committed(self, branches: mqOtidList) -> list[BranchId]:
        wanted = self._named(branches)
        for branch in wanted:
            if self._objects.verdicts.of(branch) is not Verdict.COMMITTED:
                raise system.INVALID_TRANSACTION("not all of them are to be committed")
        return wanted


class MarkedServant:
    """See `RecoveryCoordinator`."""

    def __init__(self, objects: DatabaseObjects, name: str, branch: BranchId) -> None:
        self._objects = objects
        self._name = name
        self._branch = branch

    def replay_completion(self, r: Resource | None) -> Status:
        """How the branch is to end. PREPARING and UNKNOWN: it is not known; ask again."""
        try:
            return self._objects.marks.answer(self._name, self._branch)
        except DatabaseTrouble as silent:
            raise _not_now(silent) from silent
