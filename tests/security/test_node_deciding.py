"""Nodes that decide: whose word counts, whom a server asks, and to whom it shows who it is."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator

import pytest

from clients.memory_disk import MemoryDisk
from coordinator import coordination, interfaces
from coordinator.database_objects import open_databases
from coordinator.decision_log import DecisionLog
from coordinator.service import Service
from coordinator.tasks import ThreadTasks
from idl import system
from idl.access import Token
from idl.call import Address
from idl.cos import RecoveryCoordinator, Status
from idl.decider import (
    DECIDER,
    SETTLEMENT,
    Mq_Decider,
    Mq_Settlement,
    mqDecided,
    mqVoter,
)
from idl.mq import QueueNotFound, mqBranch, mqCompletion, mqWork
from idl.orb import NetworkOrb
from idl.otids import MARKED, SETTLER, member_name, otid_of, split_otid
from idl.places import place_of
from mqserver.node import NodeSettings
from mqserver.transactions.orphans import AskingTimes
from mqserver.transactions.settling import SettlingTimes
from tests.security.attacker import call
from tests.security.guarded_node import QUICK, SMALL, GuardedNode, batch, token_of
from tests.security.impostor import Impostor, saying_nothing

SOON_S = 10.0
EAGER = NodeSettings(
    **{
        **vars(SMALL),
        "asking": AskingTimes(first_s=0.1, longest_s=0.2, call_s=0.5),
        "settling": SettlingTimes(after_s=0.1, again_s=0.1, call_s=0.5),
    }
)
PLACE = place_of("127.0.0.1", 9)


@pytest.fixture(scope="module")
def guarded() -> Iterator[GuardedNode]:
    with contextlib.closing(GuardedNode(settings=EAGER)) as made:
        yield made


@pytest.fixture
def listener() -> Iterator[Impostor]:
    """A place where somebody listens who is nobody's server."""
    with Impostor(saying_nothing) as listener:
        yield listener


def decider(guarded: GuardedNode, who: str) -> Mq_Decider:
    return guarded.orb(who).proxy(guarded.reference(DECIDER), Mq_Decider)


def settlement(guarded: GuardedNode, at: Address | None = None) -> Mq_Settlement:
    where = at or guarded.coordinator
    return guarded.orb("alice").proxy(f"PYRO:{SETTLEMENT}@{where}", Mq_Settlement)


def voted(guarded: GuardedNode, queue: str = "a.voted") -> mqBranch:
    """A branch of alice's that has voted, and asks for what is decided elsewhere."""
    branch = mqBranch(guarded.new_otid(), "n1", None)
    work = (mqWork(queue, batch(b"x"), ()),)
    asked = settlement(guarded)
    assert decider(guarded, "alice").vote(branch, 1, work, PLACE, asked)[0] is Status.PREPARED
    return branch


def end(guarded: GuardedNode, branch: mqBranch) -> None:
    named = otid_of(split_otid(branch.otid)[0], branch.name)
    guarded.as_admin("root").decideBranch(named, False)
    guarded.as_admin("root").forgetBranch(named)


@pytest.mark.parametrize("who", ["bob", "root", "tx"])
@pytest.mark.parametrize("is_committed", [True, False])
def test_a_voter_is_ended_by_nobody_but_its_owner(
    guarded: GuardedNode, who: str, is_committed: bool
) -> None:
    with guarded.unharmed():
        branch = voted(guarded)
        with pytest.raises(system.NO_PERMISSION):
            decider(guarded, who).endVoter(branch, is_committed)
        assert guarded.as_node("alice").countMessages("a.voted") == 0
        decider(guarded, "alice").endVoter(branch, False)


def test_what_a_coordinator_decides_its_owner_does_not_tell(guarded: GuardedNode) -> None:
    reference = f"PYRO:recovery/x@{guarded.coordinator}"
    recovery = guarded.orb("alice").proxy(reference, RecoveryCoordinator)
    branch = mqBranch(guarded.new_otid(), "n1", recovery)
    work = (mqWork("a.told", batch(b"x"), ()),)
    pushed = guarded.as_node("alice").pushDown(branch, 1, work, mqCompletion.PREPARE)
    assert pushed[0] is Status.PREPARED
    with guarded.unharmed():
        for is_committed in (True, False):
            with pytest.raises(system.NO_PERMISSION):
                decider(guarded, "alice").endVoter(branch, is_committed)
        assert guarded.as_node("alice").countMessages("a.told") == 0
    end(guarded, branch)


@pytest.mark.parametrize("who", ["alice", "bob", "root"])
def test_what_was_decided_is_told_to_coordinators_alone(guarded: GuardedNode, who: str) -> None:
    otid = guarded.new_otid()
    for ask in (decider(guarded, who).getDecision, decider(guarded, who).fence):
        with pytest.raises(system.NO_PERMISSION):
            ask(otid)
    assert decider(guarded, "tx").getDecision(otid) is Status.NO_TRANSACTION


def test_who_may_not_write_neither_votes_nor_decides(guarded: GuardedNode) -> None:
    work = (mqWork("b.others", batch(b"x"), ()),)
    alice, asked = decider(guarded, "alice"), settlement(guarded)
    with guarded.unharmed():
        with pytest.raises(system.NO_PERMISSION):
            alice.vote(mqBranch(guarded.new_otid(), "n1", None), 1, work, PLACE, asked)
        with pytest.raises(system.NO_PERMISSION):
            alice.decide(mqBranch(guarded.new_otid(), "n1", None), 1, work, asked, ())


def test_the_nodes_own_queue_cannot_be_named(guarded: GuardedNode) -> None:
    alice = decider(guarded, "alice")
    alice.decide(mqBranch(guarded.new_otid(), "n1", None), 1, (), settlement(guarded), ())
    with guarded.unharmed():
        for who in ("any", "root"):
            node = guarded.as_node(who)
            with pytest.raises((system.BAD_PARAM, system.NO_PERMISSION)):
                node.countMessages("~decisions")
            with pytest.raises((system.BAD_PARAM, system.NO_PERMISSION)):
                guarded.as_admin(who).purgeQueue("~decisions")
            with pytest.raises((system.BAD_PARAM, QueueNotFound)):
                guarded.as_admin(who).getQueue("~decisions")
            seen = [info.queue for info in guarded.as_admin(who).listQueues()]
            assert "~decisions" not in seen


def test_a_coordinator_elsewhere_and_nonsense_are_refused(
    guarded: GuardedNode, listener: Impostor
) -> None:
    otid = guarded.new_otid()
    branch = ((otid.formatID, otid.bqual_length, otid.tid), "n1", "")
    port = listener.address.port
    with guarded.unharmed(), guarded.wire("alice") as wire:
        seq = 0
        for where in ("192.0.2.1:7410", "example.invalid:7410", f"0.0.0.0:{port}", "nonsense"):
            for operation, arguments in (
                ("vote", (branch, 1, (), PLACE, f"PYRO:{SETTLEMENT}@{where}")),
                ("decide", (branch, 1, (), f"PYRO:{SETTLEMENT}@{where}", ())),
            ):
                seq += 1
                reply = wire.answer(call(seq, DECIDER, operation, *arguments))
                assert reply.exception in ("NO_PERMISSION", "BAD_PARAM"), (operation, where)
    alice, asked = decider(guarded, "alice"), settlement(guarded)
    named = mqBranch(otid, "n1", None)
    with pytest.raises(system.BAD_PARAM):
        alice.vote(named, 1, (), "no place", asked)
    with pytest.raises(system.BAD_PARAM):
        alice.vote(named, 1, (), PLACE, None)
    with pytest.raises(system.BAD_PARAM):
        alice.decide(named, 1, (), asked, (mqVoter("n2", "nonsense"),))
    with pytest.raises(system.BAD_PARAM):
        alice.decide(named, 1, (), asked, (mqVoter("a/b", f"PYRO:{SETTLER}@127.0.0.1:1"),))
    assert listener.visits == 0


def test_a_pretended_coordinator_is_shown_no_token(
    guarded: GuardedNode, listener: Impostor
) -> None:
    """A caller may be asked, at its own host, about its own transactions; it learns nothing."""
    alice, asked = decider(guarded, "alice"), settlement(guarded, listener.address)
    voter = mqBranch(guarded.new_otid(), "n1", None)
    work = (mqWork("a.lost", batch(b"x"), ()),)
    assert alice.vote(voter, 1, work, PLACE, asked)[0] is Status.PREPARED
    decided = mqBranch(guarded.new_otid(), "n1", None)
    voters = (mqVoter("n2", f"PYRO:{SETTLER}@127.0.0.1:1"),)
    assert alice.decide(decided, 1, (), asked, voters)[0] is Status.COMMITTED
    deadline = time.monotonic() + SOON_S
    while listener.visits < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert listener.visits >= 2
    assert b"canary" not in listener.heard
    alice.endVoter(voter, False)


# --- The coordinator -----------------------------------------------------------------------------


@pytest.fixture
def coordinator() -> Iterator[Address]:
    """A coordinator with a token of its own, which trusts nobody by name."""
    token = Token(token_of("tx"))
    orb = NetworkOrb(Address("127.0.0.1", 0), token=token, limits=QUICK, timeout_s=2.0)
    tasks, disk = ThreadTasks(time.monotonic, lambda failed: None), MemoryDisk()
    log = DecisionLog(disk, secrets.token_bytes, segment_blocks=64)
    service = Service(orb, log, tasks, secrets.token_bytes)
    databases = open_databases(service, disk, secrets.token_bytes)
    service.start()
    interfaces.publish(service)
    coordination.publish(service, databases)
    assert orb.address is not None
    yield orb.address
    service.timeouts.close()
    databases.close()
    orb.close()
    tasks.close(1.0)
    service.close()


def test_a_coordinator_goes_nowhere_that_its_callers_may_not_name(coordinator: Address) -> None:
    with contextlib.closing(NetworkOrb(timeout_s=5.0, limits=QUICK)) as caller:
        asked = caller.proxy(f"PYRO:{SETTLEMENT}@{coordinator}", Mq_Settlement)
        otid = otid_of(bytes(32))
        voters = (mqVoter("n2", f"PYRO:{SETTLER}@192.0.2.1:7411"),)
        begun = time.monotonic()
        assert asked.settle((mqDecided(otid, voters),)) == ()
        place = place_of("192.0.2.1", 7411)
        name = member_name(f"{MARKED}/{place}", bytes(32), "n1")
        marked = caller.proxy(f"PYRO:{name}@{coordinator}", RecoveryCoordinator)
        with pytest.raises(system.TRANSIENT, match="not trusted"):
            marked.replay_completion(None)
        # Nobody was waited for.
        assert time.monotonic() - begun < 1.0


def test_a_coordinator_shows_its_token_to_no_stranger(
    coordinator: Address, listener: Impostor
) -> None:
    with contextlib.closing(NetworkOrb(timeout_s=10.0, limits=QUICK)) as caller:
        asked = caller.proxy(f"PYRO:{SETTLEMENT}@{coordinator}", Mq_Settlement)
        voters = (mqVoter("n2", f"PYRO:{SETTLER}@{listener.address}"),)
        assert asked.settle((mqDecided(otid_of(bytes(32)), voters),)) == ()
        place = place_of(listener.address.host, listener.address.port)
        name = member_name(f"{MARKED}/{place}", bytes(32), "n1")
        marked = caller.proxy(f"PYRO:{name}@{coordinator}", RecoveryCoordinator)
        with pytest.raises(system.TRANSIENT):
            marked.replay_completion(None)
    assert listener.visits >= 2
    assert b"canary" not in listener.heard
