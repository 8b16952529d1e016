"""What one caller has begun, holds or was given is nobody else's, and the node goes nowhere."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from idl import cos, system
from idl.call import repeating
from idl.cos import EventChannel, RecoveryCoordinator, Status
from idl.mq import (
    BranchEnded,
    Mq_Fifo,
    Mq_Node,
    mqBranch,
    mqCompletion,
    mqHeader,
    mqTimestamp,
    mqWork,
)
from idl.otids import member_name, otid_of, split_otid
from tests.security.attacker import call
from tests.security.guarded_node import ALL, ALONE, QUICK, GuardedNode, batch
from tests.security.impostor import Impostor, saying_nothing

HEADER = mqHeader(0, 0, mqTimestamp(0, 0), "")
GUESSES = 2000

Attack = Callable[[Mq_Node, mqBranch], object]


@pytest.fixture(scope="module")
def guarded() -> Iterator[GuardedNode]:
    with contextlib.closing(GuardedNode()) as made:
        yield made


@pytest.fixture
def listener() -> Iterator[Impostor]:
    """A place that the node must not go to."""
    with Impostor(saying_nothing) as listener:
        yield listener


def _put(node: Mq_Node, branch: mqBranch) -> object:
    return node.putMany(branch, 2, "a.shared", batch(b"smuggled"))


def _get(node: Mq_Node, branch: mqBranch) -> object:
    return node.getMany(branch, 2, "a.shared", ALL, 1, 0)


def _repeat(node: Mq_Node, branch: mqBranch) -> object:
    return node.putMany(branch, 1, "a.shared", batch(b"mine"))


def _push(node: Mq_Node, branch: mqBranch) -> object:
    work = (mqWork("a.shared", batch(b"smuggled"), ()),)
    return node.pushDown(branch, 2, work, mqCompletion.COMMIT_ONE_PHASE)


def _prepare(node: Mq_Node, branch: mqBranch) -> object:
    return node.prepareBranch(branch, 1)


def _roll_back(node: Mq_Node, branch: mqBranch) -> object:
    return node.rollbackBranch(branch)


def _lock(node: Mq_Node, branch: mqBranch) -> object:
    return node.lockMany(branch, "list", "a.shared", ALL, 10)


def _fetch(node: Mq_Node, branch: mqBranch) -> object:
    return node.fetchLocked(branch, "list", 0, 10)


# S15
@pytest.mark.parametrize(
    "attack", [_put, _get, _repeat, _push, _prepare, _roll_back, _lock, _fetch]
)
def test_a_branch_of_another_cannot_be_touched(guarded: GuardedNode, attack: Attack) -> None:
    branch = guarded.branch()
    owner = guarded.as_node("alice")
    owner.putMany(branch, 1, "a.shared", batch(b"mine"))
    with guarded.unharmed():
        with pytest.raises(system.NO_PERMISSION) as refused:
            attack(guarded.as_node("bob"), branch)
        assert "no such branch of this caller" in refused.value.reason
        assert guarded.as_node("bob").getOutcome(branch.otid) is Status.NO_TRANSACTION
    # It is as it was, and its owner goes on.
    assert guarded.as_node("alice").getOutcome(branch.otid) is Status.ACTIVE
    status, _, _ = owner.pushDown(branch, 2, (), mqCompletion.COMMIT_ONE_PHASE)
    assert status is Status.COMMITTED
    assert owner.getMany(ALONE, 0, "a.shared", ALL, 10, 0).messages.payloads == (b"mine",)


# S15
def test_nobody_learns_by_guessing_which_transactions_there_are(guarded: GuardedNode) -> None:
    branch = guarded.branch()
    guarded.as_node("alice").putMany(branch, 1, "a.shared", batch(b"mine"))
    gtrid, _ = split_otid(branch.otid)
    bob = guarded.as_node("bob")
    begun = time.monotonic()
    with guarded.unharmed():
        for _ in range(GUESSES):
            guess = gtrid[:-12] + secrets.token_bytes(12)
            assert bob.getOutcome(otid_of(guess)) is Status.NO_TRANSACTION
    assert time.monotonic() - begun < 20.0
    guarded.as_node("alice").rollbackBranch(branch)


# S15
def test_who_is_refused_again_and_again_waits_for_each_refusal_and_nobody_else_does() -> None:
    limits = replace(QUICK, refusals_at_once=10, refusals_per_s=20.0)
    with contextlib.closing(GuardedNode(limits=limits)) as guarded:
        branch = guarded.branch()
        guarded.as_node("alice").putMany(branch, 1, "a.shared", batch(b"mine"))
        bob = guarded.as_node("bob")
        refused_s: list[float] = []

        def guess() -> None:
            for _ in range(40):
                begun = time.monotonic()
                with pytest.raises(system.NO_PERMISSION):
                    _put(bob, branch)
                refused_s.append(time.monotonic() - begun)

        with ThreadPoolExecutor(1) as pool:
            guessing = pool.submit(guess)
            served = 0
            while not guessing.done():
                # Neither others are held up, nor what the same principal may do.
                for name, queue in (("alice", "a.shared"), ("bob", "a.shared")):
                    begun = time.monotonic()
                    guarded.as_node(name).countMessages(queue)
                    assert time.monotonic() - begun < 1.0
                served += 1
            guessing.result()
        # The first ten at once, the others twenty a second, on any machine.
        assert sum(refused_s[:5]) < 1.0
        assert sum(refused_s) >= 28 / 20
        assert served > 10


# S15, S20
def test_a_call_that_was_heard_cannot_be_repeated_by_another(guarded: GuardedNode) -> None:
    heard = secrets.token_bytes(16)
    with repeating(heard):
        guarded.as_node("alice").putMany(ALONE, 0, "a.shared", batch(b"once"))
        with pytest.raises(system.NO_PERMISSION):
            guarded.as_node("bob").getMany(ALONE, 0, "a.shared", ALL, 1, 0)
        with pytest.raises(system.NO_PERMISSION):
            guarded.as_node("bob").putMany(ALONE, 0, "a.shared", batch(b"once"))
    assert guarded.as_node("alice").countMessages("a.shared") == 1
    guarded.as_node("alice").getMany(ALONE, 0, "a.shared", ALL, 1, 0)


# S20, bad inputs 29 and 30
def test_the_same_call_twice_has_one_effect(guarded: GuardedNode) -> None:
    alice = guarded.as_node("alice")
    with repeating(secrets.token_bytes(16)):
        first = alice.putMany(ALONE, 0, "a.twice", batch(b"once"))
        assert alice.putMany(ALONE, 0, "a.twice", batch(b"once")) == first
    with repeating(secrets.token_bytes(16)):
        taken = alice.getMany(ALONE, 0, "a.twice", ALL, 5, 0)
        assert alice.getMany(ALONE, 0, "a.twice", ALL, 5, 0) == taken
    assert taken.messages.payloads == (b"once",)
    branch = guarded.branch()
    work = (mqWork("a.twice", batch(b"two"), ()),)
    done = alice.pushDown(branch, 1, work, mqCompletion.COMMIT_ONE_PHASE)
    assert alice.pushDown(branch, 1, work, mqCompletion.COMMIT_ONE_PHASE)[0] is done[0]
    assert alice.countMessages("a.twice") == 1
    # Bad input 31
    with pytest.raises(BranchEnded):
        alice.putMany(branch, 2, "a.twice", batch(b"late"))
    alice.getMany(ALONE, 0, "a.twice", ALL, 5, 0)


# S15
def test_reservations_of_another_cannot_be_touched(guarded: GuardedNode) -> None:
    alice, bob = guarded.as_node("alice"), guarded.as_node("bob")
    alice.putMany(ALONE, 0, "a.shared", batch(b"one", b"two"))
    number = alice.reserve("stream", "a.shared", ALL, 0, 10, 0)
    with guarded.unharmed():
        attacks: list[Callable[[], object]] = [
            lambda: bob.reserve("stream", "a.shared", ALL, number, 10, 0),
            lambda: bob.getReservationSize("stream", number),
            lambda: bob.fetchReserved("stream", number, 0, 2),
            lambda: bob.finishReservations("stream", number),
            lambda: bob.getFinished("stream"),
        ]
        for attack in attacks:
            with pytest.raises(system.NO_PERMISSION):
                attack()
    assert alice.fetchReserved("stream", number, 0, 2).messages.payloads == (b"one", b"two")
    alice.finishReservations("stream", number)


# S15
def test_objects_of_a_channel_exist_only_for_whom_they_were_made(guarded: GuardedNode) -> None:
    reference = guarded.reference("channel/a.shared")
    orb = guarded.orb("alice")
    supplier = orb.proxy(reference, EventChannel).for_consumers().obtain_pull_supplier()
    supplier.connect_pull_consumer(None)
    name = orb.reference_of(supplier).removeprefix("PYRO:").partition("@")[0]
    assert len(name.rpartition("/")[2]) >= 32
    unknown = guarded.reference(f"object/{secrets.token_hex(16)}")
    told = set()
    with guarded.unharmed():
        for target in (guarded.reference(name), unknown):
            stolen = guarded.orb("bob").proxy(target, cos.ProxyPullSupplier)
            for attack in (stolen.try_pull, stolen.disconnect_pull_supplier):
                with pytest.raises(system.OBJECT_NOT_EXIST) as refused:
                    attack()
                known = target.removeprefix("PYRO:").partition("@")[0]
                told.add(refused.value.reason.replace(known, "NAME"))
    assert len(told) == 1
    assert supplier.try_pull()[1] is False
    supplier.disconnect_pull_supplier()


# --- Where the node goes -------------------------------------------------------------------------


def _places(listener: Impostor) -> list[str]:
    host, port = listener.address.host, listener.address.port
    return [
        "PYRO:x@192.0.2.1:7410",
        "PYRO:x@example.invalid:7410",
        f"PYRO:x@0.0.0.0:{port}",
        f"PYRO:x@localhost.example.invalid:{port}",
        "PYRO:x@./u:/run/secret.sock",
        f"PYRONAME:x@{host}:{port}",
        f"x@{host}:{port}",
        "",
    ]


# S16, S17
def test_a_reference_to_elsewhere_is_refused_wherever_it_is_taken(
    guarded: GuardedNode, listener: Impostor
) -> None:
    branch = guarded.branch()
    with guarded.unharmed(), guarded.wire("alice") as wire:
        seq = 0
        otid = (branch.otid.formatID, branch.otid.bqual_length, branch.otid.tid)
        for place in _places(listener):
            for name, operation, arguments in (
                ("fifo/a.one", "mqPut", (place, ((0, 0, (0, 0), "")), (), b"x")),
                ("fifo/a.one", "mqGetNext", (place,)),
                ("standard/a.one", "mqGet", (place, "000000000000001")),
                ("node", "prepareBranch", ((otid, "n1", place), 0)),
            ):
                seq += 1
                reply = wire.answer(call(seq, name, operation, *arguments))
                assert reply.exception in ("NO_PERMISSION", "BAD_PARAM"), (operation, place)
    assert listener.visits == 0


# S30
def test_who_pretends_to_be_the_coordinator_is_shown_no_token_and_decides_nothing(
    guarded: GuardedNode, listener: Impostor
) -> None:
    """A caller may be asked, at its own host, about its own branch; it commits none by that."""
    reference = f"PYRO:recovery/x@{listener.address}"
    recovery = guarded.orb("alice").proxy(reference, RecoveryCoordinator)
    branch = mqBranch(guarded.new_otid(), "n1", recovery)
    alice = guarded.as_node("alice")
    alice.putMany(branch, 1, "a.doubt", batch(b"in doubt"))
    assert alice.pushDown(branch, 2, (), mqCompletion.PREPARE)[0] is Status.PREPARED
    gtrid, _ = split_otid(branch.otid)
    with guarded.unharmed():
        for who in ("alice", "bob", "root"):
            forged = guarded.orb(who).proxy(
                guarded.reference(member_name("branch", gtrid, "n1")), cos.Resource
            )
            with pytest.raises(system.NO_PERMISSION):
                forged.commit()
        assert alice.countMessages("a.doubt") == 0
    guarded.as_admin("root").decideBranch(otid_of(gtrid, "n1"), False)
    guarded.as_admin("root").forgetBranch(otid_of(gtrid, "n1"))
    assert b"canary" not in listener.heard


# S17
def test_the_token_of_the_node_is_shown_to_nobody_but_the_coordinator(
    guarded: GuardedNode,
) -> None:
    with Impostor(lambda wire, request: wire.reset()) as listener:
        _join_transaction_at(guarded, listener)
        assert listener.visits > 0
        assert b"oncemq" in listener.heard
        assert b"canary" not in listener.heard


def _join_transaction_at(guarded: GuardedNode, listener: Impostor) -> None:
    control = guarded.orb("alice").proxy(f"PYRO:control@{listener.address}", cos.Control)
    fifo = guarded.orb("alice").proxy(guarded.reference("fifo/a.one"), Mq_Fifo, timeout_s=5.0)
    with guarded.unharmed(), pytest.raises(system.SystemException):
        fifo.mqPut(control, HEADER, (), b"x")
