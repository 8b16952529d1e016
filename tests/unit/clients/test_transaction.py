"""Transactions whose calls are lost on the way: what the caller is told, and what is true then."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from clients import structs
from clients.errors import (
    ConnectionLost,
    OutcomeUnknown,
    RolledBack,
    ServerFailed,
    TransactionEnded,
)
from clients.messages import batch_of
from clients.transaction import Outcome, Transaction
from idl import system
from idl.coordination import mqParticipant
from idl.mq import QueueFull, mqCompletion
from idl.otids import parse_shown
from mqserver.storage.contract import QueueSettings
from tests.unit.clients.lossy_node import AFTER, BEFORE, LATE, LossyHome


@pytest.fixture
def home() -> Iterator[LossyHome]:
    made = LossyHome()
    yield made
    made.close()


def payloads(home: LossyHome, name: str = "q") -> list[bytes]:
    return [message.payload for message in home.queue(name).browse()]


def test_a_transaction_of_puts_is_one_call_to_the_node(home: LossyHome) -> None:
    with home.begin():
        for number in range(1000):
            home.queue("q").put(b"%d" % number)
        home.queue("r").put(b"x")
    assert home.orb.calls == ["lease", "pushDown"]
    with home.begin():
        home.queue("q").put(b"again")
    assert home.orb.calls == ["lease", "pushDown", "pushDown"]


def test_a_get_and_a_put_are_two_calls(home: LossyHome) -> None:
    home.queue("q").put(b"x")
    home.orb.calls.clear()
    with home.begin():
        message = home.queue("q").get()
        assert message is not None
        home.queue("r").put(message.payload)
    assert home.orb.calls == ["lease", "getMany", "pushDown"]


def test_nothing_done_is_no_call_at_all(home: LossyHome) -> None:
    with home.begin():
        pass
    home.begin().rollback()
    assert home.orb.calls == []


def test_a_commit_whose_answer_was_lost_is_asked_for_again(home: LossyHome) -> None:
    home.plan("pushDown", AFTER, BEFORE, AFTER)
    with home.begin() as tx:
        key = home.queue("q").put(b"x")
    assert tx.status is Outcome.COMMITTED
    assert payloads(home) == [b"x"]
    assert home.queue("q").read(key) is not None


def test_a_commit_that_never_arrived_is_rolled_back(home: LossyHome) -> None:
    home.plan("pushDown", *[BEFORE] * 1000)
    tx = home.begin()
    home.queue("q").put(b"x", tx=tx)
    with pytest.raises(RolledBack) as told:
        tx.commit()
    assert told.value.retryable
    assert isinstance(told.value.__cause__, ConnectionLost)
    home.orb.plans.clear()
    assert payloads(home) == []


def test_an_answer_that_stays_lost_is_asked_for_at_the_node(home: LossyHome) -> None:
    home.plan("pushDown", *[AFTER] * 1000)
    begun = home.clock.time
    with home.begin() as tx:
        home.queue("q").put(b"x")
    assert tx.status is Outcome.COMMITTED
    # Not for longer: the node may forget, and would then carry it out anew.
    assert home.clock.time - begun <= 11
    assert payloads(home) == [b"x"]


def test_a_refusal_of_the_repetition_says_nothing_about_the_first_attempt(home: LossyHome) -> None:
    # As when the login of the new connection was damaged on its way.
    home.plan("pushDown", AFTER, system.NO_PERMISSION("not let in", system.Completion.NO))
    with home.begin() as tx:
        home.queue("q").put(b"x")
    assert tx.status is Outcome.COMMITTED
    assert payloads(home) == [b"x"]


def test_a_request_that_was_damaged_on_its_way_is_made_again(home: LossyHome) -> None:
    damaged = system.MARSHAL("the request was damaged on the way", system.Completion.NO)
    for operation in ("pushDown", "putMany", "getMany"):
        home.plan(operation, damaged)
    home.queue("q").put(b"x")
    with home.begin():
        assert home.queue("q").get() is not None
        home.queue("q").put(b"y")
    assert payloads(home) == [b"y"]


def test_work_that_the_node_has_not_ended_is_rolled_back(home: LossyHome) -> None:
    home.queue("q").put(b"x")
    tx = home.begin()
    assert home.queue("q").get(tx=tx) is not None
    home.plan("pushDown", *[system.COMM_FAILURE("cut", system.Completion.MAYBE)] * 1000)
    with pytest.raises(RolledBack):
        tx.commit()
    assert payloads(home) == [b"x"]


def test_what_nobody_can_say_is_unknown(home: LossyHome) -> None:
    home.plan("pushDown", *[AFTER] * 1000)
    home.plan("getOutcome", *[BEFORE] * 1000)
    tx = home.begin()
    home.queue("q").put(b"x", tx=tx)
    with pytest.raises(OutcomeUnknown) as told:
        tx.commit()
    assert told.value.otid == tx.otid
    assert tx.otid in str(told.value)
    assert tx.status is Outcome.UNKNOWN
    with pytest.raises(TransactionEnded):
        tx.rollback()


def test_a_node_that_was_restarted_after_the_commit_says_so_without_keys(home: LossyHome) -> None:
    home.plan("pushDown", AFTER)
    sleep = home.clock.sleep

    def restart(seconds: float) -> None:
        sleep(seconds)
        home.restart()

    home.node().sleep = restart
    with home.begin() as tx:
        key = home.queue("q").put(b"x")
    assert tx.status is Outcome.COMMITTED
    assert payloads(home) == [b"x"]
    assert not key.is_known


def test_a_node_that_was_restarted_before_the_commit_has_lost_the_work(home: LossyHome) -> None:
    home.queue("q").put(b"x")
    tx = home.begin()
    assert home.queue("q").get(tx=tx) is not None
    home.restart()
    with pytest.raises(RolledBack, match="restarted"):
        home.queue("q").get(tx=tx)
    with pytest.raises(RolledBack):
        tx.commit()
    assert payloads(home) == [b"x"]


def test_a_get_whose_answer_was_lost_brings_the_same_message(home: LossyHome) -> None:
    home.queue("q").put_many([b"1", b"2"])
    home.plan("getMany", AFTER, AFTER)
    with home.begin() as tx:
        message = home.queue("q").get(tx=tx)
        assert message is not None
        assert message.payload == b"1"
    assert payloads(home) == [b"2"]


def test_a_get_that_is_never_answered_leaves_only_the_rollback(home: LossyHome) -> None:
    home.queue("q").put(b"1")
    tx = home.begin(timeout=1000)
    home.plan("getMany", LATE)
    with pytest.raises(Exception, match="late"):
        home.queue("q").get(tx=tx)
    assert tx.status is Outcome.ROLLBACK_ONLY
    with pytest.raises(RolledBack):
        tx.commit()
    assert payloads(home) == [b"1"]


def test_a_refused_request_leaves_the_transaction_as_it_was(home: LossyHome) -> None:
    with home.begin() as tx:
        home.queue("q").put(b"1", timeout=0.01)
        home.plan("putMany", QueueFull("q", 1))
        home.queue("q").put(b"2", timeout=0.5)
        home.queue("q").put(b"3", tx=tx)
    assert payloads(home) == [b"1", b"2", b"3"]


def test_a_server_that_failed_is_asked_how_it_ended(home: LossyHome) -> None:
    home.plan("pushDown", system.INTERNAL("broken"))
    tx = home.begin()
    home.queue("q").put(b"x", tx=tx)
    with pytest.raises(OutcomeUnknown):
        tx.commit()
    home.plan("getMany", system.INTERNAL("broken", system.Completion.NO))
    other = home.begin()
    with pytest.raises(ServerFailed, match="broken"):
        home.queue("q").get(tx=other)
    other.rollback()


def test_an_interrupted_request_leaves_only_the_rollback(home: LossyHome) -> None:
    home.queue("q").put(b"1")
    tx = home.begin()
    home.plan("getMany", _Interrupt())
    with pytest.raises(_Interrupt):
        home.queue("q").get(tx=tx)
    with pytest.raises(RolledBack):
        home.queue("q").get(tx=tx)
    assert payloads(home) == [b"1"]


class _Interrupt(Exception):
    """As from a signal."""


# --- Outside of transactions


def test_a_put_of_its_own_is_carried_out_once(home: LossyHome) -> None:
    home.plan("putMany", AFTER, AFTER, BEFORE)
    key = home.queue("q").put(b"x")
    assert payloads(home) == [b"x"]
    assert home.queue("q").read(key) is not None


def test_a_get_of_its_own_is_carried_out_once(home: LossyHome) -> None:
    home.queue("q").put_many([b"1", b"2"])
    home.plan("getMany", AFTER)
    message = home.queue("q").get()
    assert message is not None
    assert message.payload == b"1"
    assert payloads(home) == [b"2"]


def test_a_put_that_is_never_answered_is_unknown(home: LossyHome) -> None:
    home.plan("putMany", LATE)
    with pytest.raises(OutcomeUnknown, match="look into the queue") as told:
        home.queue("q").put(b"x")
    assert told.value.otid == ""


def test_a_put_whose_repetition_is_refused_is_unknown(home: LossyHome) -> None:
    home.plan("putMany", AFTER, system.NO_PERMISSION("not let in", system.Completion.NO))
    with pytest.raises(OutcomeUnknown):
        home.queue("q").put(b"x")
    assert payloads(home) == [b"x"]


def test_a_put_whose_repetition_finds_the_queue_full_was_carried_out(home: LossyHome) -> None:
    home.server.queues.create("q", QueueSettings(messages_max=1))
    home.plan("putMany", AFTER)
    sleep = home.clock.sleep

    def restart(seconds: float) -> None:
        sleep(seconds)
        home.restart()

    home.node().sleep = restart
    key = home.queue("q").put(b"x")
    assert payloads(home) == [b"x"]
    assert not key.is_known


def test_a_put_that_never_arrived_was_not_carried_out(home: LossyHome) -> None:
    home.plan("putMany", *[BEFORE] * 1000)
    begun = home.clock.time
    with pytest.raises(ConnectionLost):
        home.queue("q").put(b"x")
    assert home.clock.time - begun <= 31


def test_the_rest_of_a_long_get_may_fail_without_losing_the_first_part(
    home: LossyHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clients.queue.GET_AT_ONCE", 2)
    home.queue("q").put_many([b"1", b"2", b"3"])
    home.plan("getMany", "", system.NO_PERMISSION("no more"))
    assert [message.payload for message in home.queue("q").get_many(9)] == [b"1", b"2"]


# --- Others work for it


def prepared_by_another(home: LossyHome, tx: Transaction, name: str, payload: bytes) -> None:
    """A branch that somebody else has put something in, and prepared."""
    gtrid, node = parse_shown(tx.otid), home.node()
    recovery = home.deciding().recovery_of(gtrid, name)
    work = (structs.work("q", batch_of([payload], "")),)
    branch = structs.branch(gtrid, name, recovery)
    node.calls.pushDown(branch, 1, work, mqCompletion.PREPARE)


def participants(home: LossyHome, tx: Transaction, *names: str) -> list[mqParticipant]:
    gtrid, deciding = parse_shown(tx.otid), home.deciding()
    return [deciding.participant(home.node().address, gtrid, name) for name in names]


@pytest.mark.parametrize("has_own_work", [True, False])
def test_what_others_have_prepared_is_committed_where_it_was_accepted(
    home: LossyHome, has_own_work: bool
) -> None:
    with home.begin() as tx:
        assert tx.share()
        for name, payload in (("s1", b"one"), ("s2", b"two"), ("s3", b"not accepted")):
            prepared_by_another(home, tx, name, payload)
        tx.accept(participants(home, tx, "s1"))
        tx.accept(participants(home, tx, "s2"))
        if has_own_work:
            home.queue("q").put(b"own")
    assert "decide" in home.orb.calls
    home.server.orphans.ask_at_once()
    assert set(payloads(home)) == {b"one", b"two", *([b"own"] if has_own_work else [])}
    assert home.storage.branches() == []


def test_a_transaction_that_began_alone_can_accept(home: LossyHome) -> None:
    with home.begin() as tx:
        home.queue("q").put(b"own")
        prepared_by_another(home, tx, "s1", b"one")
        tx.accept(participants(home, tx, "s1"))
    assert sorted(payloads(home)) == [b"one", b"own"]


def test_what_others_have_prepared_is_rolled_back_with_it(home: LossyHome) -> None:
    tx = home.begin()
    assert tx.share()
    prepared_by_another(home, tx, "s1", b"one")
    tx.accept(participants(home, tx, "s1"))
    tx.rollback()
    # They ask, and are told.
    home.server.orphans.ask_at_once()
    assert payloads(home) == []
    assert home.storage.branches() == []


def test_what_the_coordinator_neither_decides_nor_gives_up_is_unknown(home: LossyHome) -> None:
    tx = home.begin()
    assert tx.share()
    prepared_by_another(home, tx, "s1", b"one")
    tx.accept(participants(home, tx, "s1"))
    refusal = system.NO_PERMISSION("not let in", system.Completion.NO)
    home.plan("decide", refusal)
    home.plan("giveUp", refusal)
    with pytest.raises(OutcomeUnknown) as told:
        tx.commit()
    assert told.value.otid == tx.otid
    assert tx.status is Outcome.IN_DOUBT
    assert len(home.doubts) == 1


def test_one_that_nobody_worked_for_ends_at_the_coordinator(home: LossyHome) -> None:
    with home.begin() as tx:
        assert tx.share()
    assert tx.status is Outcome.COMMITTED
    assert home.coordinator.service.transactions.every() == []
    rolled_back = home.begin()
    assert rolled_back.share()
    rolled_back.rollback()
    assert home.coordinator.service.transactions.every() == []


def test_a_version_that_was_committed_is_not_begun_again(home: LossyHome) -> None:
    with home.begin() as tx:
        assert tx.share("copy", 3)
        home.queue("q").put(b"x")
    for version in (1, 3):
        assert not home.begin().share("copy", version)
    again = home.begin()
    assert again.share("copy", 4)
    again.rollback()
    assert home.begin().share("copy", 4)


def test_who_begins_under_a_key_takes_the_place_of_one_that_died(home: LossyHome) -> None:
    first = home.begin()
    assert first.share("copy", 1)
    with home.begin() as second:
        assert second.share("copy", 1)
        home.queue("q").put(b"second", tx=second)
        home.queue("q").put(b"first", tx=first)
    with pytest.raises(RolledBack):
        first.commit()
    assert payloads(home) == [b"second"]


def test_a_session_that_was_lost_is_replaced_when_a_shared_one_begins(home: LossyHome) -> None:
    session = home.deciding().leases.session
    home.coordinator.tasks.pass_time(60.0)
    home.plan("beginOrJoin", BEFORE)
    tx = home.begin()
    assert tx.share()
    assert home.deciding().leases.session != session
    tx.rollback()
