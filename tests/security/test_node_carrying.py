"""Puts that a database is to carry: who may have them held and delivered, and what is refused."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator

import pytest

from idl import system
from idl.cos import Resource, Status, otid_t
from idl.custody import CONTENT_BYTES_MAX, NotCarried
from idl.decider import DECIDER, SETTLEMENT, Mq_Decider, Mq_Settlement
from idl.mapping import UserException
from idl.mq import (
    BranchEnded,
    DigestMismatch,
    QueueDisabled,
    QueueFull,
    mqBatch,
    mqBranch,
    mqCompletion,
    mqQueueSettings,
    mqWork,
)
from idl.otids import BRANCH, GTRID_BYTES, IDENTITY_BYTES, issue, member_name, otid_of
from idl.places import place_of
from mqserver.transactions.custody import QUEUE
from tests.security.carrying import DATABASE, Carrying, Held, busy, eventually
from tests.security.guarded_node import ALL, batch

STRANGERS = ["bob", "any", "root", "tx"]
Attack = Callable[[Carrying, mqBranch], object]


@pytest.fixture(scope="module")
def guarded() -> Iterator[Carrying]:
    with contextlib.closing(Carrying()) as made:
        # What is made with the first one does not count as changed.
        made.as_node("alice").rollbackBranch(made.hold("a.first", b"x").branch)
        yield made


def puts(queue: str, *payloads: bytes) -> tuple[mqWork, ...]:
    return (mqWork(queue, batch(*payloads), ()),)


# --- Whose it is ---------------------------------------------------------------------------------


@pytest.mark.parametrize("who", STRANGERS)
def test_what_is_held_is_delivered_and_ended_by_nobody_but_its_owner(
    guarded: Carrying, who: str
) -> None:
    with guarded.unharmed():
        held = guarded.hold("a.held", b"mine")
        stranger = guarded.carried(who)
        with pytest.raises(system.NO_PERMISSION):
            stranger.deliver(held.branch, DATABASE)
        with pytest.raises(system.NO_PERMISSION):
            stranger.hold(held.branch, 1, puts("b.theirs", b"x"), DATABASE)
        with pytest.raises(system.NO_PERMISSION):
            guarded.as_node(who).rollbackBranch(held.branch)
        assert guarded.payloads("a.held") == []
        guarded.commit(held)
        guarded.carried("alice").deliver(held.branch, DATABASE)
        assert guarded.payloads("a.held") == [b"mine"]
        _clear(guarded, "a.held")


def _new(guarded: Carrying) -> mqBranch:
    return mqBranch(guarded.new_otid(), "n1", None)


def _clear(guarded: Carrying, queue: str) -> None:
    for info in guarded.node.storage.branches():
        guarded.node.storage.rollback(info.branch)
    guarded.as_admin("any").purgeQueue(queue)


@pytest.mark.parametrize("who", ["reader", "browser", "keeper", "bob", "nobody", "root"])
def test_who_may_not_write_has_nothing_held_and_nothing_is_read(who: str) -> None:
    with contextlib.closing(Carrying()) as fresh:
        before = [info.name for info in fresh.node.storage.queues()]
        # What would be refused for another reason, if it was looked at.
        wrong = mqBatch((b"x",), (0,), (), (), (), (), ())
        for work in (puts("a.held", b"x"), (mqWork("a.held", wrong, ()),)):
            for request in (1, 2):
                with pytest.raises(system.NO_PERMISSION):
                    fresh.carried(who).hold(_new(fresh), request, work, DATABASE)
        assert [info.name for info in fresh.node.storage.queues()] == before
        assert not fresh.node.storage.branches()


def test_one_queue_that_may_not_be_written_to_is_enough(guarded: Carrying) -> None:
    work = puts("a.held", b"x") + puts("b.others", b"x")
    with guarded.unharmed():
        with pytest.raises(system.NO_PERMISSION):
            guarded.carried("alice").hold(_new(guarded), 1, work, DATABASE)
        assert guarded.payloads("b.others") == []


def test_the_queue_of_marks_cannot_be_named(guarded: Carrying) -> None:
    with guarded.unharmed():
        for who in ("any", "root"):
            with pytest.raises((system.BAD_PARAM, system.NO_PERMISSION)):
                guarded.carried(who).hold(_new(guarded), 1, puts(QUEUE, b"x"), DATABASE)
            with pytest.raises((system.BAD_PARAM, system.NO_PERMISSION)):
                guarded.as_node(who).countMessages(QUEUE)
            with pytest.raises((system.BAD_PARAM, system.NO_PERMISSION)):
                guarded.as_admin(who).purgeQueue(QUEUE)
            assert QUEUE not in [info.queue for info in guarded.as_admin(who).listQueues()]


# --- What is not held ----------------------------------------------------------------------------


def _removing(guarded: Carrying, branch: mqBranch) -> object:
    work = (mqWork("a.otherwise", batch(b"x"), ("0" * 15,)),)
    return guarded.carried("alice").hold(branch, 1, work, DATABASE)


def _second(guarded: Carrying, branch: mqBranch) -> object:
    return guarded.carried("alice").hold(branch, 2, puts("a.otherwise", b"x"), DATABASE)


def _first_again(guarded: Carrying, branch: mqBranch) -> object:
    return guarded.carried("alice").hold(branch, 0, puts("a.otherwise", b"x"), DATABASE)


def _too_large(guarded: Carrying, branch: mqBranch) -> object:
    work = puts("a.otherwise", bytes(CONTENT_BYTES_MAX))
    return guarded.carried("alice").hold(branch, 1, work, DATABASE)


def _too_many(guarded: Carrying, branch: mqBranch) -> object:
    work = puts("a.otherwise", *[b"x"] * (CONTENT_BYTES_MAX // 4))
    return guarded.carried("alice").hold(branch, 1, work, DATABASE)


def _elsewhere(guarded: Carrying, branch: mqBranch) -> object:
    return guarded.carried("alice").hold(branch, 1, puts("a.otherwise", b"x"), "elsewhere")


def test_what_a_database_cannot_carry_is_refused_and_may_still_vote(guarded: Carrying) -> None:
    with guarded.unharmed():
        branch = _new(guarded)
        with pytest.raises(NotCarried):
            _elsewhere(guarded, branch)
        _commit_alone(guarded, branch)


@pytest.mark.parametrize("hold", [_too_large])
def test_what_a_row_cannot_hold_is_prepared_and_ends_as_its_owner_says(
    guarded: Carrying, hold: Attack
) -> None:
    with guarded.unharmed():
        for is_wanted in (False, True):
            branch = _new(guarded)
            hold(guarded, branch)
            node = guarded.as_node("alice")
            assert node.getOutcome(_otid(branch)) is Status.PREPARED
            assert guarded.payloads("a.otherwise") == []
            if is_wanted:
                guarded.carried("alice").deliver(branch, DATABASE)
            else:
                node.rollbackBranch(branch)
            assert bool(guarded.payloads("a.otherwise")) is is_wanted
        _clear(guarded, "a.otherwise")


def test_what_was_prepared_is_nobody_elses_to_end(guarded: Carrying) -> None:
    with guarded.unharmed():
        branch = _new(guarded)
        _too_large(guarded, branch)
        for who in ("bob", "any"):
            with pytest.raises(system.SystemException):
                guarded.carried(who).deliver(branch, DATABASE)
            with pytest.raises((system.SystemException, UserException)):
                guarded.as_node(who).rollbackBranch(branch)
        assert guarded.as_node("alice").getOutcome(_otid(branch)) is Status.PREPARED
        guarded.as_node("alice").rollbackBranch(branch)


@pytest.mark.parametrize("hold", [_removing, _second, _first_again, _too_many])
def test_a_request_that_cannot_be_carried_out_leaves_nothing(
    guarded: Carrying, hold: Attack
) -> None:
    with guarded.unharmed():
        branch = _new(guarded)
        with pytest.raises((system.SystemException, UserException)):
            hold(guarded, branch)
        assert guarded.as_node("alice").getOutcome(_otid(branch)) is not Status.PREPARED
        assert guarded.payloads("a.otherwise") == []


def _otid(branch: mqBranch) -> otid_t:
    return otid_of(branch.otid.tid, branch.name)


def _commit_alone(guarded: Carrying, branch: mqBranch) -> None:
    work = puts("a.otherwise", b"as before")
    end = guarded.as_node("alice").pushDown
    assert end(branch, 1, work, mqCompletion.COMMIT_ONE_PHASE)[0] is Status.COMMITTED
    assert guarded.payloads("a.otherwise") == [b"as before"]
    _clear(guarded, "a.otherwise")


def test_a_transaction_of_another_coordinator_is_not_carried(guarded: Carrying) -> None:
    foreign = issue(b"x" * (IDENTITY_BYTES + 4), b"secret of a test", 1)
    branch = mqBranch(otid_of(foreign), "n1", None)
    with guarded.unharmed():
        with pytest.raises(NotCarried, match="another coordinator"):
            guarded.carried("alice").hold(branch, 1, puts("a.otherwise", b"x"), DATABASE)
        _commit_alone(guarded, branch)


def test_work_of_a_branch_that_has_done_other_work_is_prepared_with_it(guarded: Carrying) -> None:
    with guarded.unharmed():
        branch = _new(guarded)
        guarded.as_node("alice").putMany(branch, 1, "a.otherwise", batch(b"before"))
        for request in (0, 1, 3):
            with pytest.raises((NotCarried, UserException)):
                guarded.carried("alice").hold(branch, request, puts("a.x", b"x"), DATABASE)
        guarded.carried("alice").hold(branch, 2, puts("a.x", b"x"), DATABASE)
        assert guarded.as_node("alice").getOutcome(_otid(branch)) is Status.PREPARED
        guarded.as_node("alice").rollbackBranch(branch)
        assert guarded.payloads("a.otherwise") == guarded.payloads("a.x") == []


def test_a_node_with_too_many_rows_to_be_removed_holds_nothing_more() -> None:
    with contextlib.closing(Carrying()) as guarded:
        held = [guarded.hold("a.limit", b"%d" % number) for number in range(3)]
        custody = guarded.node.custody
        custody._marks_max = 2
        guarded.relay.may_forget = False
        for each in held[:2]:
            guarded.carried("alice").deliver(each.branch, DATABASE)
        branch = _new(guarded)
        with pytest.raises(NotCarried, match="too many rows"):
            guarded.carried("alice").hold(branch, 1, puts("a.otherwise", b"x"), DATABASE)
        _commit_alone(guarded, branch)
        guarded.commit(held[2])
        # Or a look has met with it before.
        with pytest.raises((system.IMP_LIMIT, system.TRANSIENT)):
            guarded.carried("alice").deliver(held[2].branch, DATABASE)
        assert guarded.payloads("a.limit") == [b"0", b"1"]
        guarded.relay.may_forget = True
        eventually(lambda: not len(custody), "there is room for marks again")
        guarded.look()
        assert guarded.payloads("a.limit") == [b"0", b"1", b"2"]


def test_what_a_queue_refuses_is_refused_and_nothing_is_left(guarded: Carrying) -> None:
    admin, alice = guarded.as_admin("any"), guarded.carried("alice")
    admin.createQueue("a.full", mqQueueSettings(True, False, 1, 0))
    admin.createQueue("a.off", mqQueueSettings(False, False, 0, 0))
    wrong = (mqWork("a.wrong", mqBatch((b"x",), (0,), (), (), (), (), ()), ()),)
    with guarded.unharmed():
        for work, kind in (
            (puts("a.full", b"1", b"2"), QueueFull),
            (puts("a.off", b"1"), QueueDisabled),
            (wrong, DigestMismatch),
        ):
            with pytest.raises(kind):
                alice.hold(_new(guarded), 1, work, DATABASE)


# --- What is held is not ended otherwise ---------------------------------------------------------


def _commit(guarded: Carrying, branch: mqBranch) -> object:
    return guarded.as_node("alice").pushDown(branch, 2, (), mqCompletion.COMMIT_ONE_PHASE)


def _commit_at_once(guarded: Carrying, branch: mqBranch) -> object:
    status = guarded.as_node("alice").pushDown(branch, 1, (), mqCompletion.COMMIT_ONE_PHASE)[0]
    # The answer to the first request, again.
    assert status is Status.ACTIVE
    raise system.INVALID_TRANSACTION


def _prepare(guarded: Carrying, branch: mqBranch) -> object:
    named = mqBranch(branch.otid, branch.name, guarded.branch().recovery)
    return guarded.as_node("alice").prepareBranch(named, 1)


def _push_and_prepare(guarded: Carrying, branch: mqBranch) -> object:
    named = mqBranch(branch.otid, branch.name, guarded.branch().recovery)
    return guarded.as_node("alice").pushDown(named, 2, (), mqCompletion.PREPARE)


def _put_more(guarded: Carrying, branch: mqBranch) -> object:
    return guarded.as_node("alice").putMany(branch, 2, "a.more", batch(b"x"))


def _get(guarded: Carrying, branch: mqBranch) -> object:
    return guarded.as_node("alice").getMany(branch, 2, "a.more", ALL, 1, 0)


def _lock(guarded: Carrying, branch: mqBranch) -> object:
    return guarded.as_node("alice").lockMany(branch, "list", "a.more", ALL, 1)


def _vote(guarded: Carrying, branch: mqBranch) -> object:
    asked = guarded.orb("alice").proxy(f"PYRO:{SETTLEMENT}@{guarded.coordinator}", Mq_Settlement)
    decider = guarded.orb("alice").proxy(guarded.reference(DECIDER), Mq_Decider)
    return decider.vote(branch, 2, (), place_of("127.0.0.1", 9), asked)


def _decide(guarded: Carrying, branch: mqBranch) -> object:
    asked = guarded.orb("alice").proxy(f"PYRO:{SETTLEMENT}@{guarded.coordinator}", Mq_Settlement)
    decider = guarded.orb("alice").proxy(guarded.reference(DECIDER), Mq_Decider)
    return decider.decide(branch, 2, (), asked, ())


@pytest.mark.parametrize(
    "end",
    [
        _commit,
        _commit_at_once,
        _prepare,
        _push_and_prepare,
        _put_more,
        _get,
        _lock,
        _vote,
        _decide,
    ],
)
def test_a_held_branch_does_nothing_else_and_ends_no_other_way(
    guarded: Carrying, end: Attack
) -> None:
    with guarded.unharmed():
        held = guarded.hold("a.whole", b"x")
        with pytest.raises(system.INVALID_TRANSACTION):
            end(guarded, held.branch)
        assert guarded.payloads("a.whole") == []
        _deliver_and_check(guarded, held)


def _deliver_and_check(guarded: Carrying, held: Held) -> None:
    guarded.commit(held)
    for _ in range(2):
        guarded.carried("alice").deliver(held.branch, DATABASE)
        assert guarded.payloads("a.whole") == [b"x"]
    assert guarded.payloads("a.more") == []
    guarded.await_empty()
    _clear(guarded, "a.whole")


@pytest.mark.parametrize("operation", ["prepare", "commit", "commit_one_phase", "rollback"])
def test_an_owner_does_not_end_what_is_held_as_a_coordinator_would(
    guarded: Carrying, operation: str
) -> None:
    held = guarded.hold("a.whole", b"x")
    reference = guarded.reference(member_name(BRANCH, held.gtrid, "n1"))
    with pytest.raises(system.NO_PERMISSION):
        getattr(guarded.orb("alice").proxy(reference, Resource), operation)()
    _deliver_and_check(guarded, held)


def test_what_was_never_held_is_not_delivered(guarded: Carrying) -> None:
    with guarded.unharmed():
        branch = _new(guarded)
        guarded.as_node("alice").putMany(branch, 1, "a.never", batch(b"x"))
        with pytest.raises(system.INVALID_TRANSACTION):
            guarded.carried("alice").deliver(branch, DATABASE)
        assert guarded.payloads("a.never") == []
        commit = guarded.as_node("alice").pushDown
        assert commit(branch, 2, (), mqCompletion.COMMIT_ONE_PHASE)[0] is Status.COMMITTED
        assert guarded.payloads("a.never") == [b"x"]
        _clear(guarded, "a.never")


def test_what_is_held_again_has_the_same_keys_and_is_put_once(guarded: Carrying) -> None:
    branch, alice = _new(guarded), guarded.carried("alice")
    answers = [alice.hold(branch, 1, puts("a.again", b"x", b"y"), DATABASE) for _ in range(3)]
    assert len({(node, keys) for _, node, keys in answers}) == 1
    guarded.commit(Held(branch, answers[-1][0]))
    alice.deliver(branch, DATABASE)
    assert guarded.payloads("a.again") == [b"x", b"y"]
    guarded.await_empty()
    # What comes so late finds that it is over, whichever way it was put.
    with pytest.raises(BranchEnded):
        alice.hold(branch, 1, puts("a.again", b"x", b"y"), DATABASE)


def test_what_was_taken_over_is_not_held_again(guarded: Carrying) -> None:
    held = guarded.lost("a.over", b"x")
    guarded.look()
    guarded.await_empty()
    for name in ("n1", "n2", "n3"):
        branch = mqBranch(held.branch.otid, name, None)
        with pytest.raises(BranchEnded):
            guarded.carried("alice").hold(branch, 1, puts("a.over", b"x"), DATABASE)
    guarded.carried("alice").deliver(held.branch, DATABASE)
    assert guarded.payloads("a.over") == [b"x"]


# --- Strangers who tell of what there is not -----------------------------------------------------


def test_many_who_tell_of_what_nobody_holds_share_looks_and_harm_nobody(
    guarded: Carrying,
) -> None:
    held, calls = guarded.hold("a.calm", b"x"), 12
    refused: list[Exception] = []

    def tell() -> None:
        for _ in range(3):
            branch = mqBranch(otid_of(next(names).to_bytes(GTRID_BYTES)), "n1", None)
            try:
                guarded.carried("bob").deliver(branch, DATABASE)
            except system.SystemException as told:
                refused.append(told)

    names, before = itertools.count(1), guarded.relay.asked
    with guarded.unharmed(), busy(calls, tell):
        pass
    # Each look asks once for what is there, and begins when all who came before it wait for it.
    assert guarded.relay.asked - before < calls * 3
    assert not refused
    guarded.commit(held)
    guarded.carried("alice").deliver(held.branch, DATABASE)
    assert guarded.payloads("a.calm") == [b"x"]
    guarded.await_empty()


def test_who_names_a_database_that_nobody_knows_is_told_to_ask_again(guarded: Carrying) -> None:
    with guarded.unharmed():
        for name in ("elsewhere", "x" * 32):
            with pytest.raises(system.TRANSIENT):
                guarded.carried("bob").deliver(_new(guarded), name)
        for nonsense in ("", "x" * 33, "a b", "é"):
            with pytest.raises((system.BAD_PARAM, ValueError, system.TRANSIENT)):
                guarded.carried("bob").deliver(_new(guarded), nonsense)
