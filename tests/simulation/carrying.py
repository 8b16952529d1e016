"""Puts that a database carries, in one world: database, coordinator, node, owners, faults.

The node's parts are the real ones: what it holds, delivers, takes over and removes, and the rules
by which owners go on. `run` is one run: faults, then calm. When everything has come to rest no row,
no mark and no branch is left, and `judge` says whether all that is committed is at the node once,
nothing else is, and everybody was told the truth; then all are started anew, and it judges again.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol, cast

from coordinator.custody import CustodyServant
from coordinator.database_drivers import DatabaseTrouble
from idl import system
from idl.call import Call, current_call, limited
from idl.cos import Status, otid_t
from idl.custody import CARRIED, CUSTODY, Mq_Carried, Mq_Custody
from idl.mapping import Boolean, UserException, interface, operation
from idl.mq import mqBranch, mqCompletion, mqKeyListList, mqWorkList
from idl.otids import GTRID_BYTES, IDENTITY_BYTES, otid_of, split_otid
from mqserver.errors import StorageError, StorageFull
from mqserver.interfaces.carried import CarriedServant
from mqserver.interfaces.node import ReadWork
from mqserver.interfaces.translation import key_texts, new_messages, translating
from mqserver.storage.contract import Message, NewMessage, Outcome, Selection
from mqserver.transactions import resource
from mqserver.transactions.custodian import CarryingTimes, Custodian
from mqserver.transactions.custody import MARK, Custody
from mqserver.transactions.custody import QUEUE as MARKS
from mqserver.transactions.requests import Branch
from mqserver.transactions.resource import branch_id
from mqserver.transactions.work import Work
from tests.simulation.carrying_database import SimulatedDatabase, SimulatedDatabases, Troubles
from tests.simulation.commitment import CALM_S, LATE_S, servants_succeed, wait_until
from tests.simulation.customers import SERVICE
from tests.simulation.deciding import waiting_in
from tests.simulation.deciding_storage import MarkDisk, MarkStorage
from tests.simulation.network import PORT, SimulatedOrb
from tests.simulation.world import CALM, Faults, Unsettled, World

NODE, DATABASE, QUEUE = "node0", "orders", "q"
IDENTITY = b"simulate"
WORKING, SETTLING = "working", "settling"
TIMES = CarryingTimes(
    after_s=1.0, again_s=2.0, look_s=3.0, age_s=1.0, call_s=2.0, patience_s=4.0, longest_s=5.0
)
SILENT_S = 12.0
FAULTY_S = 60.0
PAUSE_S = 0.1
BYTES_MAX = 1_000_000
ASKING_S = 4.0


@interface("Simulated")
class Holding(Protocol):
    """What else a node does for an owner whose puts it holds."""

    @operation(idempotent=True)
    def rollback(self, branch: mqBranch) -> None:
        """The branch is rolled back, as no row was committed."""

    @operation(idempotent=True)
    def outcome(self, otid: otid_t) -> Status:
        """How the transaction, or one branch of it, stands here."""


@interface("Simulated")
class Settling(Protocol):
    """A coordinator, as an owner sees it that does not know whether its row is committed."""

    @operation(idempotent=True)
    def settle(self, otid: otid_t) -> Boolean:
        """Whether it is committed; if not, it never will be."""


@dataclass(frozen=True)
class Doings:
    """What happens in a run beside the faults."""

    owners: int = 2
    transactions: int = 3
    slow_s: float = 0.0
    # The shares of commits that find no room, and of which the storage says nothing.
    full: float = 0.0
    lost: float = 0.0
    # So long after its end the storage has forgotten how a branch ended; 0 is never.
    forgets_s: float = 0.0
    troubles: Troubles = field(default_factory=Troubles)


def drawn(world: World) -> Doings:
    """What this seed does."""
    chance = world.random
    return Doings(
        owners=chance.choice((1, 2, 3)),
        transactions=chance.choice((1, 2, 3)),
        slow_s=chance.choice((0.0, 0.0, 0.05, 1.0)),
        full=chance.choice((0.0, 0.0, 0.2)),
        lost=chance.choice((0.0, 0.0, 0.1)),
    )


class Messages(MarkDisk):
    """A node's disk: also the queues of its messages."""

    def __init__(self) -> None:
        super().__init__()
        self.queue_of: dict[int, str] = {}


class CarryingStorage(MarkStorage):
    """A storage with several queues, which may be full, and which may forget what has ended."""

    def __init__(self, world: World, disk: Messages, doings: Doings) -> None:
        self._ended_at: dict[bytes, float] = {}
        self._doings = doings
        self._places = disk
        super().__init__(world, disk, doings.slow_s)
        self._ended_at = dict.fromkeys(self._known, world.now())

    def store(self, branch: bytes, queue: str, messages: Sequence[NewMessage]) -> range:
        """See `Storage.store`."""
        keys = super().store(branch, queue, messages)
        self._places.queue_of |= dict.fromkeys(keys, queue)
        self._find_room()
        return keys

    def browse(self, queue: str, selection: Selection, after: int, limit: int) -> list[Message]:
        """See `Storage.browse`."""
        found = super().browse(queue, selection, after, len(self._messages))
        there = [each for each in found if self._places.queue_of[each.key] == queue]
        return [each for each in there if selection.group in (0, each.group)][:limit]

    def commit_one_phase(self, branch: bytes, force: bool = True) -> None:
        """See `Storage.commit_one_phase`."""
        self._find_room()
        is_calm = self._world.faults is CALM
        self._lost_commits = 0.0 if is_calm else self._doings.lost
        super().commit_one_phase(branch, force)

    def outcome(self, branch: bytes) -> Outcome:
        """See `Storage.outcome`."""
        found = super().outcome(branch)
        ended_at = self._ended_at.get(branch, self._world.now())
        forgets_s = self._doings.forgets_s
        is_forgotten = forgets_s and self._world.now() - ended_at > forgets_s
        is_over = found not in (Outcome.ACTIVE, Outcome.PREPARED)
        return Outcome.UNKNOWN if is_forgotten and is_over else found

    def _write(self, record: Any, is_forced: bool) -> None:
        super()._write(record, is_forced)
        self._ended_at[record.branch] = self._world.now()

    def _find_room(self) -> None:
        share = 0.0 if self._world.faults is CALM else self._doings.full
        if share and self._world.random.random() < share:
            raise StorageFull("simulated", "no room")


class Monitor:
    """A condition on which one waits in the world's time."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __enter__(self) -> None:
        """Nobody else runs until this one waits."""

    def __exit__(self, *raised: object) -> None:
        """See `__enter__`."""

    def wait(self, timeout_s: float) -> None:
        """See `Condition.wait`."""
        self._world.sleep(min(timeout_s, PAUSE_S))

    def notify_all(self) -> None:
        """Those who wait look by themselves."""


class LivingNode(NamedTuple):
    """What the node has in memory."""

    storage: CarryingStorage
    custody: Custody
    custodian: Custodian


class NodeParts:
    """What the servants of the node share. See `Parts`."""

    def __init__(self, world: World, storage: CarryingStorage, work: Work) -> None:
        self.storage = storage
        self.work = work
        self.running: list[int] = []
        self.queues = SimpleNamespace(
            limits=SimpleNamespace(message_bytes_max=BYTES_MAX), store=self._store
        )
        self.coordinator = f"{SERVICE}:{PORT}"
        self._world = world

    def _store(
        self, branch: bytes, queue: str, new: Sequence[NewMessage], is_decided: bool
    ) -> range:
        return self.storage.store(branch, queue, new)

    def entered(self) -> Call:
        """See `Parts.entered`."""
        return current_call()

    def check(self, call: Call, queue: str, right: object, operation: str) -> None:
        """See `Parts.check`: all may do all."""

    def now_us(self) -> int:
        """See `Parts.now_us`."""
        return int(self._world.now() * 1e6)


class HoldingServant:
    """See `Holding`, and of `NodeServant` what `CarriedServant` needs."""

    _translated = translating(Holding)

    def __init__(self, parts: NodeParts) -> None:
        self._parts = parts

    def branch_id(self, branch: mqBranch) -> bytes:
        """See `NodeServant.branch_id`."""
        return branch_id(split_otid(branch.otid)[0], branch.name)

    @_translated
    def rollback(self, branch: mqBranch) -> None:
        """See `Holding.rollback`."""
        self._parts.work.rollback(self.branch_id(branch), self._owner())

    @_translated
    def outcome(self, otid: otid_t) -> Status:
        """See `Holding.outcome`."""
        gtrid, name = split_otid(otid)
        return self._parts.work.outcome(gtrid, name, self._owner(), sees_all=False)

    def read_work(self, call: Call, work: mqWorkList) -> list[ReadWork]:
        """See `NodeServant.read_work`."""
        read: list[ReadWork] = []
        for each in work:
            new = new_messages(each.puts, self._parts.now_us(), self._owner(), BYTES_MAX)
            read.append((each.queue, new, []))
        return read

    def hold(
        self,
        call: Call,
        branch: bytes,
        request: int,
        work: list[ReadWork],
        completion: mqCompletion,
        recovery: bytes,
        also: Callable[[Branch], None],
    ) -> tuple[bool, mqKeyListList]:
        """See `NodeServant.hold`."""

        def store(found: Branch) -> list[range]:
            keys = []
            for queue, new, _ in work:
                keys.append(self._parts.storage.store(found.id, queue, new))
                found.stored += len(new)
            also(found)
            return keys

        _, is_read_only, keys = self._parts.work.push_down(
            branch, self._owner(), request, store, completion, recovery, None
        )
        return is_read_only, tuple(map(key_texts, keys or []))

    def _owner(self) -> str:
        return self._parts.entered().principal.name


class SettlingServant:
    """See `Settling`."""

    def __init__(self, database: SimulatedDatabase) -> None:
        self._database = database

    def settle(self, otid: otid_t) -> bool:
        """See `Settling.settle`."""
        try:
            return self._database.fence(otid.tid)
        except DatabaseTrouble as silent:
            raise system.TRANSIENT(str(silent)) from silent


class Carrying:
    """The hosts of one run, what is on disks and in the database, and what was told."""

    def __init__(self, world: World, doings: Doings) -> None:
        self.world = world
        self.doings = doings
        self.database = SimulatedDatabase(world, DATABASE, doings.troubles)
        self.disk = Messages()
        self.node: LivingNode | None = None
        # What owners were told, by transaction; a crash of theirs erases nothing.
        self.told: dict[bytes, list[Status | None]] = {}
        self.todo = {f"owner{number}": doings.transactions for number in range(doings.owners)}
        self._issued = 0

    def boot(self, own: Callable[[Carrying, str], None]) -> None:
        """Everybody starts, now and after each crash."""
        self.world.boot(SERVICE, self._coordinate)
        self.world.boot(NODE, self._serve)
        for name in self.todo:
            self.world.boot(name, partial(own, self, name))

    def issue(self) -> bytes:
        """The name of a transaction that nobody has used."""
        self._issued += 1
        gtrid = IDENTITY + self._issued.to_bytes(GTRID_BYTES - IDENTITY_BYTES)
        self.told[gtrid] = []
        return gtrid

    def _coordinate(self) -> None:
        orb = SimulatedOrb(self.world, SERVICE)
        databases: Any = SimulatedDatabases(self.database)
        orb.publish(CustodyServant(IDENTITY, databases), Mq_Custody, CUSTODY)
        orb.publish(SettlingServant(self.database), Settling, SETTLING)

    def _serve(self) -> None:
        """A node, composed as `mqserver/node.py` does it, and looked after by this activity."""
        world = self.world
        storage = CarryingStorage(world, self.disk, self.doings)
        world.host(NODE).at_crash += [storage.crash, self._crashed]
        orb = SimulatedOrb(world, NODE)
        if QUEUE not in self.disk.queues:
            self.disk.queues[QUEUE] = None
        any_storage: Any = storage
        work = Work(any_storage, world.now, lambda branch: None)
        storage.at_end = work.has_ended
        new_id = partial(world.random.randbytes, 16)
        custody = Custody(any_storage, world.now, new_id, work.give_up)
        custody.load()
        while not custody.secret:
            with contextlib.suppress(StorageError):
                custody.get_ready()
        custodian = Custodian(orb, f"{SERVICE}:{PORT}", custody, world.now, TIMES)
        custodian._monitor = cast(Any, Monitor(world))
        parts: Any = NodeParts(world, storage, work)
        holding: Any = HoldingServant(parts)
        orb.publish(holding, Holding, WORKING)
        carried = CarriedServant(parts, holding, custody, custodian)
        custodian._take_over = carried.take_over
        orb.publish(carried, Mq_Carried, CARRIED)
        self.node = LivingNode(storage, custody, custodian)
        world.spawn(NODE, self._give_up_silent, work)
        world.spawn(NODE, self._ask_for_doubts, orb, storage)
        custodian._looked(0.0, TIMES.call_s)
        while True:
            if custodian._is_due():
                custodian.look_after()
            world.sleep(PAUSE_S)

    def _give_up_silent(self, work: Work) -> None:
        while True:
            self.world.sleep(1.0)
            for branch in work.silent_since(self.world.now() - SILENT_S):
                work.give_up(branch)

    def _ask_for_doubts(self, orb: SimulatedOrb, storage: CarryingStorage) -> None:
        """What has prepared asks what became of the row, as `Orphans` has it do."""
        settling = orb.proxy(f"PYRO:{SETTLING}@{SERVICE}:{PORT}", Settling)
        any_storage: Any = storage
        while True:
            self.world.sleep(self.world.random.uniform(1.0, ASKING_S))
            for info in storage.branches():
                if info.outcome is not Outcome.PREPARED:
                    continue
                with contextlib.suppress(system.SystemException, UserException, StorageError):
                    with limited(TIMES.call_s):
                        is_committed = settling.settle(otid_of(info.branch[:GTRID_BYTES]))
                    if is_committed:
                        resource.commit(any_storage, info.branch, is_durable=False)
                    else:
                        resource.roll_back(any_storage, info.branch)

    def _crashed(self) -> None:
        self.node = None

    # --- The end

    def is_done(self) -> bool:
        """The owners have done what they wanted."""
        return not any(self.todo.values())

    def is_settled(self) -> bool:
        """No row is left, no mark, and no branch at work."""
        node = self.node
        if node is None or not self.is_done() or self.database.left():
            return False
        marks = node.storage.browse(MARKS, Selection(group=MARK), 0, 1)
        return not (len(node.custody) or node.storage.is_at_work() or marks)

    def judge(self) -> None:
        """Everything is there once, nothing else is, and what was told is true."""
        assert self.node is not None
        found = self.node.storage.browse(QUEUE, Selection(), 0, 100_000)
        there = Counter(message.payload[:GTRID_BYTES] for message in found)
        committed = self.database.committed
        for gtrid, told in self.told.items():
            count, is_committed = there.pop(gtrid, 0), gtrid in committed
            case = f"transaction {gtrid.hex()[-8:]}, committed: {is_committed}, told {told}"
            assert count == is_committed, f"{count} times at the node: {case}"
            assert Status.COMMITTED not in told or is_committed, case
            assert Status.ROLLED_BACK not in told or not is_committed, case
        assert not there, "messages of nobody's"


# --- Running -------------------------------------------------------------------------------------


def run(
    seed: int,
    own: Callable[[Carrying, str], None],
    faults: Faults | None = None,
    doings: Doings | None = None,
) -> Carrying:
    """One run. What is not given is drawn with the seed."""
    chosen = World.swarm(seed) if faults is None else World(seed, faults)
    with chosen as world, servants_succeed(world), waiting_in(world):
        everything = Carrying(world, doings or drawn(world))
        _live(world, everything, own)
    return everything


def _live(world: World, everything: Carrying, own: Callable[[Carrying, str], None]) -> None:
    everything.boot(own)
    wait_until(world, everything.is_done, FAULTY_S)
    world.run(until=world.now() + world.random.choice((0.0, 4.0, 10.0)))
    world.calm()
    _settle(world, everything)
    world.run(until=world.now() + LATE_S)
    _settle(world, everything)
    everything.judge()
    for name in (NODE, SERVICE):
        world.restart(name)
    _settle(world, everything)
    everything.judge()


def _settle(world: World, everything: Carrying) -> None:
    if not wait_until(world, everything.is_settled, CALM_S):
        raise Unsettled(f"seed {world.seed}: it has not come to rest by {world.now():.3f} s")
