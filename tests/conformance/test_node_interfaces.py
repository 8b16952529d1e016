"""Every operation of a node's interfaces, once within the process and once over the network.

The tests know neither: each gets an orb, and where node and coordinator are. The last test sees to
it that no operation of `Mq_Standard`, `Mq_Fifo`, `Mq_Service`, `Mq_Admin` or `Mq_Node` is left out.
"""

from __future__ import annotations

import contextlib
import secrets
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import pytest

from clients.deciding import Deciding
from clients.memory_disk import MemoryDisk
from coordinator import coordination, interfaces
from coordinator.decision_log import DecisionLog
from coordinator.service import Service
from coordinator.tasks import ThreadTasks
from idl import mq, system
from idl.call import Address, Orb, within
from idl.cos import (
    Control,
    EventChannel,
    NotPrepared,
    Status,
    TransactionFactory,
    Vote,
)
from idl.local import HERE, LocalOrb
from idl.mapping import operations_of
from idl.mq import (
    Mq_Admin,
    Mq_Fifo,
    Mq_Node,
    Mq_Standard,
    mqBatch,
    mqBranch,
    mqCompletion,
    mqHeader,
    mqQueueSettings,
    mqSelection,
    mqTimestamp,
    mqWork,
)
from idl.orb import NetworkOrb
from idl.otids import NULL_OTID, otid_of, split_otid
from mqserver.node import Node, NodeSettings
from mqserver.storage.memory import MemoryStorage
from mqserver.transactions.orphans import AskingTimes

T = TypeVar("T")

ALONE = mqBranch(NULL_OTID, "", None)
ANY = mqSelection(0, 0, ())
HEADER = mqHeader(0, 0, mqTimestamp(0, 0), "")
PLAIN = mqQueueSettings(True, False, 0, 0)
SEGMENT_BLOCKS = 64
DRAIN_S = 5.0


@dataclass
class Place:
    """A node and its coordinator, as a client sees them."""

    orb: Orb
    at: Address
    coordinator: Address
    running: Node

    def __post_init__(self) -> None:
        self.deciding = Deciding(self.orb, self.coordinator, time.monotonic, time.sleep)
        self.node = self.object("node", Mq_Node)
        self.admin = self.object("admin", Mq_Admin)

    def object(self, name: str, interface: type[T]) -> T:
        """The node's object with this name."""
        return self.orb.proxy(f"PYRO:{name}@{self.at}", interface)

    def standard(self, queue: str) -> Mq_Standard:
        """The queue by key."""
        return self.object(f"standard/{queue}", Mq_Standard)

    def fifo(self, queue: str) -> Mq_Fifo:
        """The queue in order."""
        return self.object(f"fifo/{queue}", Mq_Fifo)

    def begin(self) -> Control:
        """A new transaction, the standard way."""
        reference = f"PYRO:{interfaces.FACTORY}@{self.coordinator}"
        return self.orb.proxy(reference, TransactionFactory).create(30)

    def branch(self, name: str = "n1") -> mqBranch:
        """A branch of a new transaction, the fast way."""
        gtrid = self.deciding.begin()
        return mqBranch(otid_of(gtrid), name, self.deciding.recovery_of(gtrid, name))

    def put(self, queue: str, *payloads: bytes) -> tuple[str, ...]:
        """The messages are there; their keys."""
        return self.node.putMany(ALONE, 0, queue, batch(*payloads))

    def seen(self, queue: str) -> tuple[bytes, ...]:
        """What is to be had."""
        return self.node.browse(queue, ANY, "", 1000).messages.payloads


def batch(*payloads: bytes) -> mqBatch:
    """Messages with their digests."""
    digests = tuple(zlib.crc32(payload) for payload in payloads)
    return mqBatch(payloads, digests, (), (), (), (), ())


@contextlib.contextmanager
def running(orb: Orb, coordinator_orb: Orb, coordinator: Address) -> Iterator[Node]:
    """A node and a coordinator, published at these orbs."""
    tasks = ThreadTasks(time.monotonic, lambda failed: None)
    decisions = DecisionLog(MemoryDisk(), secrets.token_bytes, segment_blocks=SEGMENT_BLOCKS)
    deciding = Service(coordinator_orb, decisions, tasks, secrets.token_bytes)
    deciding.start()
    interfaces.publish(deciding)
    coordination.publish(deciding)
    node = Node(
        orb,
        MemoryStorage(time.monotonic),
        name="conforming",
        coordinator=str(coordinator),
        settings=NodeSettings(lock_wait_s=0.2, asking=AskingTimes(first_s=0.2)),
    )
    node.start()
    try:
        yield node
    finally:
        deciding.timeouts.close()
        node.drain()
        coordinator_orb.close()
        orb.close()
        tasks.close(DRAIN_S)
        node.close()
        deciding.close()


@contextlib.contextmanager
def embedded() -> Iterator[Place]:
    """All in one process, without a network."""
    orb = LocalOrb()
    with running(orb, orb, HERE) as node:
        yield Place(orb, HERE, HERE, node)


@contextlib.contextmanager
def remote() -> Iterator[Place]:
    """Each with a socket of its own, and a client that has none."""
    servers = [NetworkOrb(Address("127.0.0.1", 0), takes_turns=True) for _ in range(2)]
    at, coordinator = [server.address for server in servers]
    assert at is not None
    assert coordinator is not None
    client = NetworkOrb()
    with running(servers[0], servers[1], coordinator) as node:
        yield Place(client, at, coordinator, node)
        client.close()


@pytest.fixture(scope="module", params=[embedded, remote], ids=["embedded", "remote"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    with request.param() as made:
        yield made


@pytest.fixture
def queue() -> str:
    return f"q-{secrets.token_hex(4)}"


# --- Mq_Standard


def test_a_message_is_put_read_and_got_by_its_key(place: Place, queue: str) -> None:
    standard = place.standard(queue)
    pairs = (mq.mqAttribute("a", "1"), mq.mqAttribute("a", "ü"))
    header = mqHeader(3, 7, mqTimestamp(0, 0), "alice")
    key = standard.mqPut(None, header, pairs, b"data")
    is_there, found, attribs, data = standard.mqRead(key)
    assert (is_there, found.priority, found.groupID, found.senderID) == (True, 3, 7, "alice")
    assert abs(found.time.mq_sec - time.time()) < 60
    assert (attribs, data) == (pairs, b"data")
    assert standard.mqGetAttribList(key) == pairs
    assert standard.mqGet(None, key)[1:] == (pairs, b"data")
    with pytest.raises(mq.MessageNotFound):
        standard.mqGet(None, key)
    assert standard.mqRead(key)[0] is False


def test_a_message_is_removed_once(place: Place, queue: str) -> None:
    standard = place.standard(queue)
    key = standard.mqPut(None, HEADER, (), b"")
    assert (standard.mqRemove(key), standard.mqRemove(key)) == (True, False)


def test_a_message_that_another_holds_is_waited_for_and_then_given_up(
    place: Place, queue: str
) -> None:
    (key,) = place.put(queue, b"x")
    holder = place.begin()
    place.standard(queue).mqGet(holder, key)
    with pytest.raises(mq.LockTimeout) as timeout:
        place.standard(queue).mqGet(None, key)
    assert timeout.value == mq.LockTimeout(queue, key)
    with pytest.raises(mq.LockTimeout):
        place.standard(queue).mqRemove(key)
    holder.get_terminator().rollback()
    assert place.standard(queue).mqGet(None, key)[2] == b"x"


# --- Mq_Fifo


def test_messages_come_in_order_of_time_or_of_priority(place: Place, queue: str) -> None:
    fifo = place.fifo(queue)
    for priority in (1, 9, 5):
        fifo.mqPut(None, mqHeader(priority, 0, mqTimestamp(0, 0), ""), (), bytes([priority]))
    assert fifo.mqGetPriorization() is False
    fifo.mqSetPriorization(True)
    assert fifo.mqGetPriorization() is True
    assert [fifo.mqGetNext(None)[2] for _ in range(2)] == [b"\x09", b"\x05"]
    fifo.mqSetPriorization(False)
    assert fifo.mqGetNext(None)[2] == b"\x01"
    with pytest.raises(mq.QueueEmpty):
        fifo.mqGetNext(None)


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_move_under_a_control_happens_as_a_whole_or_not_at_all(
    place: Place, queue: str, is_commit: bool
) -> None:
    place.put(queue, b"moved")
    control = place.begin()
    payload = place.fifo(queue).mqGetNext(control)[2]
    place.standard(f"{queue}-to").mqPut(control, HEADER, (), payload)
    place.fifo(f"{queue}-to").mqPut(control, HEADER, (), b"more")
    assert place.seen(queue) == place.seen(f"{queue}-to") == ()
    if is_commit:
        control.get_terminator().commit(True)
    else:
        control.get_terminator().rollback()
    moved = (b"moved", b"more")
    assert place.seen(queue) == (() if is_commit else (b"moved",))
    assert place.seen(f"{queue}-to") == (moved if is_commit else ())
    with pytest.raises((system.INVALID_TRANSACTION, system.TRANSACTION_ROLLEDBACK)):
        place.fifo(queue).mqPut(control, HEADER, (), b"late")


def test_the_transaction_travels_with_the_call(place: Place, queue: str) -> None:
    control = place.begin()
    with within(control.get_coordinator().get_txcontext()):
        place.fifo(queue).mqPut(None, HEADER, (), b"x")
    assert place.seen(queue) == ()
    control.get_terminator().commit(True)
    assert place.seen(queue) == (b"x",)


def test_both_ways_to_put_are_told_to_a_channel(place: Place, queue: str) -> None:
    place.standard(queue).mqStartNotify(f"{queue}-a", 0)
    place.fifo(queue).mqStartNotify(f"{queue}-b", 3)
    channel = place.object(f"channel/{queue}-a", EventChannel)
    supplier = channel.for_consumers().obtain_pull_supplier()
    supplier.connect_pull_consumer(None)
    place.put(queue, b"x")
    assert supplier.pull() is not None
    supplier.disconnect_pull_supplier()


# --- Mq_Service and Mq_Admin


def test_the_node_is_switched_off_and_on(place: Place, queue: str) -> None:
    place.put(queue, b"x")
    place.admin.setEnabled(False)
    try:
        assert place.admin.isEnabled() is False
        calls: list[Callable[[], object]] = [
            lambda: place.put(queue, b"y"),
            lambda: place.fifo(queue).mqGetNext(None),
            lambda: place.standard(queue).mqRead("000000000000001"),
            lambda: place.node.countMessages(queue),
        ]
        for call in calls:
            with pytest.raises(mq.QueueDisabled):
                call()
        assert "disabled" in place.admin.getStatus()
    finally:
        place.admin.setEnabled(True)
    assert place.admin.isEnabled() is True
    assert place.node.countMessages(queue) == 1


def test_a_queue_is_made_changed_emptied_and_deleted(place: Place, queue: str) -> None:
    place.admin.createQueue(queue, PLAIN)
    with pytest.raises(mq.QueueExists):
        place.admin.createQueue(queue, PLAIN)
    place.admin.changeQueue(queue, mqQueueSettings(True, False, 2, 0))
    place.put(queue, b"1", b"2")
    with pytest.raises(mq.QueueFull) as full:
        place.put(queue, b"3")
    assert full.value == mq.QueueFull(queue, 2)
    info = place.admin.getQueue(queue)
    assert (info.visible, info.bytes) == (2, 2)
    assert info.queue in [each.queue for each in place.admin.listQueues()]
    with pytest.raises(mq.QueueInUse):
        place.admin.deleteQueue(queue)
    assert place.admin.purgeQueue(queue) == 2
    place.admin.deleteQueue(queue)
    with pytest.raises(mq.QueueNotFound):
        place.admin.getQueue(queue)


def test_an_operator_ends_a_branch_in_doubt(place: Place, queue: str) -> None:
    branch = place.branch()
    status, _, _ = place.node.pushDown(
        branch, 1, (mqWork(queue, batch(b"x"), ()),), mqCompletion.PREPARE
    )
    assert status is Status.PREPARED
    otid = otid_of(split_otid(branch.otid)[0], "n1")
    shown = {info.otid: info for info in place.admin.listBranches()}
    assert (shown[otid].state, shown[otid].owner) == (Status.PREPARED, "local")
    assert str(place.coordinator) in shown[otid].coordinator
    place.admin.decideBranch(otid, True)
    assert place.seen(queue) == (b"x",)
    with pytest.raises(NotPrepared):
        place.admin.decideBranch(otid, True)
    place.admin.forgetBranch(otid)
    with pytest.raises(mq.BranchNotFound):
        place.admin.forgetBranch(otid)


def test_a_shutdown_reaches_whoever_runs_the_node(place: Place) -> None:
    asked: list[bool] = []
    place.running._on_shutdown = lambda: asked.append(True)
    place.admin.mqShutdown()
    deadline = time.monotonic() + 10
    while not asked and time.monotonic() < deadline:
        time.sleep(0.01)
    assert asked == [True]


# --- Mq_Node


def test_a_node_says_who_it_is(place: Place) -> None:
    info = place.node.getNode()
    assert (info.name, info.coordinator) == ("conforming", str(place.coordinator))


def test_many_messages_are_put_counted_browsed_and_got(place: Place, queue: str) -> None:
    payloads = tuple(bytes([number]) * 10 for number in range(200))
    keys = place.put(queue, *payloads)
    assert place.node.countMessages(queue) == 200
    assert place.seen(queue) == payloads
    assert place.node.getKeys(ALONE, 0, queue, keys[5:7]).messages.payloads == payloads[5:7]
    taken = place.node.getMany(ALONE, 0, queue, ANY, 5, 0)
    assert (taken.keys, taken.messages.payloads) == (keys[:5], payloads[:5])
    altered = mqBatch((b"x",), (1,), (), (), (), (), ())
    with pytest.raises(mq.DigestMismatch):
        place.node.putMany(ALONE, 0, queue, altered)


def test_the_next_messages_move_to_another_queue(place: Place, queue: str) -> None:
    place.put(queue, b"1", b"2", b"3")
    target = f"{queue}-moved"
    assert place.node.moveMany(queue, target, ANY, 2, 0) == 2
    assert (place.seen(queue), place.seen(target)) == ((b"3",), (b"1", b"2"))


def test_a_transaction_on_one_node_is_one_push_down(place: Place, queue: str) -> None:
    (key,) = place.put(queue, b"old")
    branch = place.branch()
    work = (mqWork(queue, batch(b"new"), (key,)),)
    told = place.node.pushDown(branch, 1, work, mqCompletion.COMMIT_ONE_PHASE)
    assert told[:2] == (Status.COMMITTED, False)
    assert place.node.pushDown(branch, 1, work, mqCompletion.COMMIT_ONE_PHASE) == told
    assert place.seen(queue) == (b"new",)
    assert place.node.getOutcome(branch.otid) is Status.COMMITTED
    with pytest.raises(mq.BranchEnded) as over:
        place.node.putMany(branch, 2, queue, batch(b"late"))
    assert over.value.outcome is Status.COMMITTED


def test_branches_are_prepared_and_decided_at_the_coordinator(place: Place, queue: str) -> None:
    gtrid = place.deciding.begin()
    counted, pushed, unnamed = [
        mqBranch(otid_of(gtrid), name, place.deciding.recovery_of(gtrid, name))
        for name in ("n1", "n2", "n3")
    ]
    place.node.putMany(counted, 1, queue, batch(b"1"))
    assert place.node.prepareBranch(counted, 1) is Vote.COMMIT
    work = (mqWork(queue, batch(b"2"), ()),)
    place.node.pushDown(pushed, 1, work, mqCompletion.PREPARE)
    place.node.putMany(unnamed, 1, queue, batch(b"3"))
    assert place.seen(queue) == ()
    named = tuple(place.deciding.participant(place.at, gtrid, name) for name in ("n1", "n2"))
    assert place.deciding.decide(gtrid, named, 10.0).status is Status.COMMITTED
    place.node.rollbackBranch(unnamed)
    assert place.seen(queue) == (b"1", b"2")
    assert place.node.getOutcome(otid_of(gtrid)) is Status.COMMITTED


def test_what_is_put_in_bulk_counts_as_what_is_put(place: Place, queue: str) -> None:
    branch = place.branch()
    first = place.node.putBulk(branch, 1, queue, batch(b"1", b"2"))
    with pytest.raises(mq.DigestMismatch):
        place.node.putBulk(branch, 2, queue, replace(batch(b"3"), digests=(0,)))
    place.node.pushDown(branch, 2, (), mqCompletion.COMMIT_ONE_PHASE)
    assert place.seen(queue) == (b"1", b"2")
    assert place.node.browse(queue, ANY, "", 1).keys == (first,)


def test_a_request_out_of_order_is_refused(place: Place, queue: str) -> None:
    branch = place.branch()
    place.node.putMany(branch, 1, queue, batch(b"1"))
    with pytest.raises(mq.RequestOutOfOrder) as refused:
        place.node.putMany(branch, 3, queue, batch(b"3"))
    assert refused.value.expected == 2
    place.node.rollbackBranch(branch)
    with pytest.raises(mq.BranchEnded):
        place.node.putMany(branch, 2, queue, batch(b"2"))


def test_a_list_is_locked_by_a_branch_and_read_in_pieces(place: Place, queue: str) -> None:
    place.put(queue, b"1", b"2", b"3")
    branch = place.branch()
    assert place.node.lockMany(branch, "list", queue, ANY, 2) == 2
    assert place.node.fetchLocked(branch, "list", 1, 9).messages.payloads == (b"2",)
    with pytest.raises(mq.ReservationNotFound):
        place.node.fetchLocked(branch, "other", 0, 1)
    place.node.rollbackBranch(branch)
    assert place.seen(queue) == (b"1", b"2", b"3")


def test_a_consumer_reserves_fetches_and_finishes(place: Place, queue: str) -> None:
    consumer = f"c-{queue}"
    node = place.node
    place.put(queue, b"1", b"2", b"3")
    assert node.reserve(consumer, queue, ANY, 0, 2, 0) == 1
    assert node.getReservationSize(consumer, 1) == 2
    assert node.fetchReserved(consumer, 1, 0, 2).messages.payloads == (b"1", b"2")
    node.finishReservations(consumer, 1)
    assert node.getFinished(consumer) == 1
    with pytest.raises(mq.ReservationOutdated) as old:
        node.reserve(consumer, queue, ANY, 0, 2, 0)
    assert old.value.done == 1
    assert node.reserve(consumer, queue, ANY, 1, 2, 0) == 2
    held = {info.consumer: info for info in place.admin.listConsumers()}
    assert (held[consumer].queue, held[consumer].reserved) == (queue, 1)
    place.admin.dropConsumer(consumer)
    with pytest.raises(mq.ConsumerNotFound):
        place.admin.dropConsumer(consumer)
    assert place.seen(queue) == (b"3",)
    assert node.getVersion("job that never was") == 0


def test_no_operation_is_left_out() -> None:
    text = Path(__file__).read_text()
    by_variable = {
        Mq_Standard: ("standard", "place.standard(queue)"),
        Mq_Fifo: ("fifo", "place.fifo(queue)"),
        Mq_Node: ("node", "place.node"),
        Mq_Admin: ("place.admin",),
    }
    missing = [
        f"{interface.__name__}.{name}"
        for interface, variables in by_variable.items()
        for name in operations_of(interface)
        if not any(f"{variable}.{name}(" in text for variable in variables)
    ]
    assert missing == []
