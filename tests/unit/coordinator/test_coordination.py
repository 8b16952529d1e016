"""Transactions that cost few calls, transactions under a key, and what an operator sees and does.

The time that sessions and transactions have is in `test_timeouts.py`.
"""

from __future__ import annotations

import pytest

from coordinator import delivery, interfaces, ledger
from coordinator.coordination import COORDINATION
from idl import system
from idl.coordination import (
    Mq_Coordinator,
    Mq_Settler,
    SessionEnded,
    mqLease,
    mqParticipant,
    mqTransactionKey,
)
from idl.cos import Coordinator, HeuristicMixed, HeuristicRollback, NotPrepared, Status, otid_t
from idl.otids import BLOCK_NUMBERS, NULL_OTID, issue, member_name, otid_of, split_otid
from tests.unit.clients.embedded_coordinator import (
    LOST_ANSWER,
    EmbeddedCoordinator,
    Participant,
    admin_of,
    calling_as,
    published,
    raising,
    words,
)

FOREIGN = otid_of(b"\xff" * 32)
KEY = mqTransactionKey("copy", 1)


@pytest.fixture
def coordinator() -> EmbeddedCoordinator:
    return EmbeddedCoordinator()


def _of(coordinator: EmbeddedCoordinator) -> Mq_Coordinator:
    return coordinator.orb.member(COORDINATION, Mq_Coordinator)


def _name(lease: mqLease, number: int = 0) -> otid_t:
    return otid_of(issue(lease.prefix, lease.secret, lease.first + number))


def _named(
    coordinator: EmbeddedCoordinator, *participants: Participant
) -> tuple[mqParticipant, ...]:
    return tuple(
        mqParticipant(f"b{n}", published(coordinator, each), None)
        for n, each in enumerate(participants)
    )


def _away() -> Participant:
    participant = Participant()
    participant.is_away = True
    return participant


# --- Sessions


def test_a_lease_opens_a_session_with_names_of_its_own(coordinator: EmbeddedCoordinator) -> None:
    asked = _of(coordinator)
    first, other = asked.lease(0, 0), asked.lease(0, 0)
    assert first.session != other.session
    assert {first.count, other.count} == {BLOCK_NUMBERS}
    assert first.first != other.first
    again = asked.lease(first.session, 0)
    assert again.session == first.session
    assert again.first not in (first.first, other.first)


def test_names_that_were_not_leased_are_foreign(coordinator: EmbeddedCoordinator) -> None:
    lease = _of(coordinator).lease(0, 0)
    beyond = otid_of(issue(lease.prefix, lease.secret, lease.first + BLOCK_NUMBERS))
    assert _of(coordinator).getOutcome(beyond).status is Status.UNKNOWN


def test_names_of_a_block_that_its_owner_is_done_with_are_over(
    coordinator: EmbeddedCoordinator,
) -> None:
    asked = _of(coordinator)
    lease = asked.lease(0, 0)
    asked.decide(_name(lease), _named(coordinator, Participant()))
    later = asked.lease(lease.session, lease.first + BLOCK_NUMBERS)
    assert later.first != lease.first
    assert asked.getOutcome(_name(lease)).status is Status.COMMITTED
    assert asked.decide(_name(lease, 1), ()).status is Status.ROLLED_BACK


def test_a_session_that_was_ended_is_over_and_so_is_what_it_had_not_decided(
    coordinator: EmbeddedCoordinator,
) -> None:
    asked = _of(coordinator)
    lease = asked.lease(0, 0)
    asked.endSession(lease.session)
    asked.endSession(lease.session)
    with pytest.raises(SessionEnded):
        asked.renew(lease.session, ())
    with pytest.raises(SessionEnded):
        asked.lease(lease.session, 0)
    with pytest.raises(SessionEnded):
        asked.beginOrJoin(lease.session, KEY, 0)
    assert asked.decide(_name(lease), ()).status is Status.ROLLED_BACK


def test_the_session_of_another_looks_as_if_it_had_ended(coordinator: EmbeddedCoordinator) -> None:
    asked = _of(coordinator)
    lease = asked.lease(0, 0)
    with calling_as("mallory"):
        asked.endSession(lease.session)
        with pytest.raises(SessionEnded):
            asked.renew(lease.session, ())
        with pytest.raises(SessionEnded):
            asked.lease(lease.session, 0)
    asked.renew(lease.session, ())


def test_the_transaction_of_another_is_neither_renewed_nor_ended(
    coordinator: EmbeddedCoordinator,
) -> None:
    asked, begun = _of(coordinator), coordinator.begin()
    with calling_as("mallory"):
        own = asked.lease(0, 0).session
        with pytest.raises(system.INVALID_TRANSACTION):
            asked.renew(own, (begun.otid,))
        with pytest.raises(system.INVALID_TRANSACTION):
            asked.decide(begun.otid, ())
        with pytest.raises(system.INVALID_TRANSACTION):
            asked.giveUp(begun.otid)
    assert begun.coordinator.get_status() is Status.ACTIVE


def test_a_renewed_transaction_belongs_to_the_session(coordinator: EmbeddedCoordinator) -> None:
    asked, begun = _of(coordinator), coordinator.begin()
    over = coordinator.begin()
    over.terminator.rollback()
    lease = asked.lease(0, 0)
    asked.renew(lease.session, (begun.otid, over.otid))
    asked.endSession(lease.session)
    assert begun.coordinator.get_status() is Status.ROLLED_BACK


# --- Keys


def test_a_key_is_begun_once_and_joined_afterwards(coordinator: EmbeddedCoordinator) -> None:
    asked = _of(coordinator)
    session = asked.lease(0, 0).session
    begun = asked.beginOrJoin(session, KEY, 0)
    again = asked.beginOrJoin(asked.lease(0, 0).session, KEY, 0)
    assert begun.status is again.status is Status.ACTIVE
    assert (begun.isJoined, again.isJoined) == (False, True)
    assert begun.otid == again.otid


def test_a_key_that_was_committed_is_not_begun_again(coordinator: EmbeddedCoordinator) -> None:
    asked = _of(coordinator)
    session = asked.lease(0, 0).session
    asked.decide(asked.beginOrJoin(session, mqTransactionKey("copy", 3), 0).otid, ())
    for version in (1, 3):
        again = asked.beginOrJoin(session, mqTransactionKey("copy", version), 0)
        assert (again.status, again.otid) == (Status.COMMITTED, NULL_OTID)
    assert asked.getVersion("copy") == 3
    assert asked.beginOrJoin(session, mqTransactionKey("copy", 4), 0).status is Status.ACTIVE


def test_a_key_that_was_rolled_back_is_begun_again(coordinator: EmbeddedCoordinator) -> None:
    asked = _of(coordinator)
    session = asked.lease(0, 0).session
    first = asked.beginOrJoin(session, KEY, 0)
    asked.giveUp(first.otid)
    second = asked.beginOrJoin(session, KEY, 0)
    assert second.status is Status.ACTIVE
    assert second.otid != first.otid


def test_of_two_versions_the_lower_one_cannot_be_committed_after_the_higher(
    coordinator: EmbeddedCoordinator,
) -> None:
    asked = _of(coordinator)
    session = asked.lease(0, 0).session
    low = asked.beginOrJoin(session, mqTransactionKey("copy", 1), 0).otid
    high = asked.beginOrJoin(session, mqTransactionKey("copy", 2), 0).otid
    assert asked.decide(high, ()).status is Status.COMMITTED
    outcome = asked.decide(low, ())
    assert outcome.status is Status.ROLLED_BACK
    assert "has been committed" in outcome.reason


def test_a_key_that_is_being_ended_is_to_be_asked_for_again(
    coordinator: EmbeddedCoordinator,
) -> None:
    asked, slow = _of(coordinator), Participant()
    session = asked.lease(0, 0).session
    otid = asked.beginOrJoin(session, KEY, 0).otid

    def ask() -> None:
        with pytest.raises(system.TRANSIENT, match="being ended"):
            asked.beginOrJoin(session, KEY, 0)

    slow.during["prepare"] = ask
    _coordinator_of(coordinator, otid).register_resource(published(coordinator, slow))
    assert asked.decide(otid, ()).status is Status.COMMITTED
    # A commit that must be remembered is never left to the only participant.
    assert slow.told == ["prepare", "commit"]


@pytest.mark.parametrize("key", [mqTransactionKey("copy", 0), mqTransactionKey("", 1)])
def test_a_key_needs_an_application_and_a_version(
    coordinator: EmbeddedCoordinator, key: mqTransactionKey
) -> None:
    session = _of(coordinator).lease(0, 0).session
    with pytest.raises(system.BAD_PARAM):
        _of(coordinator).beginOrJoin(session, key, 0)


def test_the_key_of_another_is_not_joined(coordinator: EmbeddedCoordinator) -> None:
    asked = _of(coordinator)
    asked.beginOrJoin(asked.lease(0, 0).session, KEY, 0)
    with calling_as("mallory"):
        own = asked.lease(0, 0).session
        with pytest.raises(system.INVALID_TRANSACTION):
            asked.beginOrJoin(own, KEY, 0)


def test_an_application_without_commits_has_version_zero(coordinator: EmbeddedCoordinator) -> None:
    assert _of(coordinator).getVersion("nobody") == 0


def test_a_key_without_participants_is_remembered_after_a_restart(
    coordinator: EmbeddedCoordinator,
) -> None:
    asked = _of(coordinator)
    otid = asked.beginOrJoin(asked.lease(0, 0).session, KEY, 0).otid
    asked.decide(otid, ())
    coordinator.restart()
    asked = _of(coordinator)
    assert asked.getVersion("copy") == 1
    assert asked.beginOrJoin(asked.lease(0, 0).session, KEY, 0).status is Status.COMMITTED
    assert asked.decide(otid, ()).status is Status.COMMITTED


# --- Deciding


def _coordinator_of(coordinator: EmbeddedCoordinator, otid: otid_t) -> Coordinator:
    return coordinator.orb.member(member_name("coordinator", split_otid(otid)[0]), Coordinator)


def test_a_transaction_that_nobody_takes_part_in_is_committed(
    coordinator: EmbeddedCoordinator,
) -> None:
    asked = _of(coordinator)
    otid = _name(asked.lease(0, 0))
    assert asked.decide(otid, ()).status is Status.COMMITTED
    assert asked.decide(otid, ()).status is Status.COMMITTED


def test_names_that_are_given_twice_are_refused_and_nothing_is_decided(
    coordinator: EmbeddedCoordinator,
) -> None:
    asked, participant = _of(coordinator), Participant()
    otid = _name(asked.lease(0, 0))
    (named,) = _named(coordinator, participant)
    with pytest.raises(system.BAD_PARAM, match="same name"):
        asked.decide(otid, (named, named))
    assert asked.decide(otid, (named,)).status is Status.COMMITTED


@pytest.mark.parametrize("name", ["r1", "r2", "r007"])
def test_names_of_those_that_register_themselves_are_refused_and_nothing_is_decided(
    coordinator: EmbeddedCoordinator, name: str
) -> None:
    otid = _name(_of(coordinator).lease(0, 0))
    participant = mqParticipant(name, published(coordinator, Participant()), None)
    with pytest.raises(system.BAD_PARAM, match="register themselves"):
        _of(coordinator).decide(otid, (participant,))
    assert _of(coordinator).getOutcome(otid).status is Status.ACTIVE
    for fine in ("n1", "r", "r1x", "R1"):
        assert not interfaces.is_of_registered(fine)


@pytest.mark.parametrize("name", ["", "no name", "ö"])
def test_a_participant_needs_a_name_and_a_resource(
    coordinator: EmbeddedCoordinator, name: str
) -> None:
    asked = _of(coordinator)
    otid = _name(asked.lease(0, 0))
    with pytest.raises(system.BAD_PARAM):
        asked.decide(otid, (mqParticipant(name, published(coordinator, Participant()), None),))
    with pytest.raises(system.BAD_PARAM, match="nil"):
        asked.decide(otid, (mqParticipant("b0", None, None),))
    assert asked.getOutcome(otid).status is Status.ACTIVE


def test_registered_resources_vote_where_others_have_prepared_already(
    coordinator: EmbeddedCoordinator,
) -> None:
    asked, registered, prepared = _of(coordinator), Participant(), Participant()
    otid = _name(asked.lease(0, 0))
    _coordinator_of(coordinator, otid).register_resource(published(coordinator, registered))
    assert asked.decide(otid, _named(coordinator, prepared)).status is Status.COMMITTED
    assert words([registered, prepared]) == ["prepare commit", "commit"]


def test_a_vote_against_rolls_back_those_who_have_prepared_already(
    coordinator: EmbeddedCoordinator,
) -> None:
    asked, registered, prepared = _of(coordinator), Participant(), Participant()
    registered.during["prepare"] = raising(LOST_ANSWER)
    otid = _name(asked.lease(0, 0))
    _coordinator_of(coordinator, otid).register_resource(published(coordinator, registered))
    outcome = asked.decide(otid, _named(coordinator, prepared))
    assert outcome.status is Status.ROLLED_BACK
    assert "did not vote" in outcome.reason
    assert words([registered, prepared]) == ["prepare rollback", "rollback"]


def test_a_subtransaction_is_decided_without_naming_anybody(
    coordinator: EmbeddedCoordinator,
) -> None:
    asked, child = _of(coordinator), coordinator.begin().nest()
    with pytest.raises(system.BAD_PARAM, match="register themselves"):
        asked.decide(child.otid, _named(coordinator, Participant()))
    assert asked.decide(child.otid, ()).status is Status.COMMITTED


def test_a_heuristic_is_told_to_whoever_decides(coordinator: EmbeddedCoordinator) -> None:
    asked, alone = _of(coordinator), Participant()
    alone.during["commit"] = raising(HeuristicRollback())
    otid, named = _name(asked.lease(0, 0)), _named(coordinator, alone)
    for _ in range(2):
        with pytest.raises(HeuristicMixed):
            asked.decide(otid, named)
    assert alone.told == ["commit", "forget"]
    assert asked.getOutcome(otid).status is Status.COMMITTED


def test_the_same_names_get_the_same_answer_after_a_restart_and_others_do_not(
    coordinator: EmbeddedCoordinator,
) -> None:
    asked = _of(coordinator)
    otid, named = _name(asked.lease(0, 0)), _named(coordinator, _away(), Participant())
    asked.decide(otid, named)
    coordinator.restart()
    asked = _of(coordinator)
    assert asked.decide(otid, named[::-1]).status is Status.COMMITTED
    with pytest.raises(system.INVALID_TRANSACTION, match="other participants"):
        asked.decide(otid, named[:1])


def test_what_is_foreign_is_neither_decided_nor_given_up(coordinator: EmbeddedCoordinator) -> None:
    asked = _of(coordinator)
    with pytest.raises(system.INVALID_TRANSACTION):
        asked.decide(FOREIGN, ())
    assert asked.giveUp(FOREIGN).status is Status.UNKNOWN
    with pytest.raises(system.INVALID_TRANSACTION):
        asked.getOutcome(otid_t(7, 0, b"theirs"))


def test_who_gives_up_hears_how_it_ended(coordinator: EmbeddedCoordinator) -> None:
    asked = _of(coordinator)
    lease, begun = asked.lease(0, 0), coordinator.begin()
    begun.join(participant := Participant())
    assert asked.giveUp(begun.otid).status is Status.ROLLED_BACK
    assert participant.told == ["rollback"]
    assert asked.giveUp(_name(lease)).status is Status.ROLLED_BACK
    asked.decide(_name(lease, 1), _named(coordinator, _away()))
    assert asked.giveUp(_name(lease, 1)).status is Status.COMMITTED


class Settler:
    """Makes commits durable, or says why not."""

    def __init__(self, *troubles: Exception) -> None:
        self.calls: list[tuple[otid_t, ...]] = []
        self._troubles = list(troubles)

    def commitBranches(self, branches: tuple[otid_t, ...]) -> tuple[otid_t, ...]:
        return branches

    def getEnded(self, branches: tuple[otid_t, ...]) -> tuple[otid_t, ...]:
        return branches

    def settle(self, branches: tuple[otid_t, ...]) -> None:
        self.calls.append(branches)
        if self._troubles:
            raise self._troubles.pop(0)


def _decided_lazily(coordinator: EmbeddedCoordinator, settler: Settler, count: int) -> list[otid_t]:
    asked, made = _of(coordinator), coordinator.orb.publish(settler, Mq_Settler)
    lease = asked.lease(0, 0)
    for number in range(count):
        resource = published(coordinator, Participant())
        asked.decide(_name(lease, number), (mqParticipant("b0", resource, made),))
    return [_name(lease, number) for number in range(count)]


def test_commits_that_are_not_durable_are_settled_together(
    coordinator: EmbeddedCoordinator,
) -> None:
    settler = Settler()
    otids = _decided_lazily(coordinator, settler, 3)
    assert len(admin_of(coordinator).listTransactions()) == 3
    coordinator.tasks.pass_time(1.0)
    assert settler.calls == [tuple(otid_of(split_otid(otid)[0], "b0") for otid in otids)]
    assert admin_of(coordinator).listTransactions() == ()


def test_no_more_than_so_many_commits_are_settled_with_one_call(
    coordinator: EmbeddedCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "SETTLED_TOGETHER", 2)
    settler = Settler()
    _decided_lazily(coordinator, settler, 5)
    coordinator.tasks.pass_time(1.0)
    assert sorted(len(branches) for branches in settler.calls) == [1, 2, 2]
    assert admin_of(coordinator).listTransactions() == ()


def test_a_settler_that_is_away_is_asked_again(coordinator: EmbeddedCoordinator) -> None:
    settler = Settler(LOST_ANSWER)
    _decided_lazily(coordinator, settler, 1)
    coordinator.tasks.pass_time(2.0)
    assert len(settler.calls) == 2
    assert admin_of(coordinator).listTransactions() == ()


def test_where_a_settler_refuses_each_participant_is_told_again(
    coordinator: EmbeddedCoordinator,
) -> None:
    settler = Settler(NotPrepared())
    _decided_lazily(coordinator, settler, 2)
    coordinator.tasks.pass_time(2.0)
    assert [each.told for each in coordinator.participants.values()] == [["commit"] * 2] * 2
    assert len(settler.calls) == 2


# --- Outcomes


def test_the_outcome_is_that_of_the_moment(coordinator: EmbeddedCoordinator) -> None:
    asked = _of(coordinator)
    lease = asked.lease(0, 0)
    assert asked.getOutcome(_name(lease)).status is Status.ACTIVE
    asked.decide(_name(lease), _named(coordinator, _away()))
    assert asked.getOutcome(_name(lease)).status is Status.COMMITTING
    coordinator.restart()
    assert _of(coordinator).getOutcome(_name(lease)).status is Status.COMMITTING


def test_what_an_older_incarnation_had_not_decided_is_rolled_back(
    coordinator: EmbeddedCoordinator,
) -> None:
    otid = _name(_of(coordinator).lease(0, 0))
    coordinator.restart()
    assert _of(coordinator).getOutcome(otid).status is Status.ROLLED_BACK


def test_what_an_older_incarnation_left_to_the_only_participant_is_unknown(
    coordinator: EmbeddedCoordinator,
) -> None:
    begun = coordinator.begin()
    begun.join(Participant())
    begun.terminator.commit(True)
    coordinator.restart()
    outcome = _of(coordinator).getOutcome(begun.otid)
    assert outcome.status is Status.UNKNOWN
    assert "only participant" in outcome.reason


def test_an_outcome_that_is_too_old_is_unknown_and_never_a_guess(
    coordinator: EmbeddedCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "OUTCOMES_KEPT", 1)
    asked = _of(coordinator)
    lease = asked.lease(0, 0)
    for number in (0, 2):
        asked.decide(_name(lease, number), _named(coordinator, Participant()))
    asked.giveUp(_name(lease, 3))
    assert asked.getOutcome(_name(lease)).status is Status.COMMITTED
    asked.endSession(lease.session)
    statuses = [asked.getOutcome(_name(lease, number)).status for number in range(4)]
    unknown = statuses[0]
    assert unknown is Status.UNKNOWN
    assert statuses[1:] == [Status.ROLLED_BACK, Status.COMMITTED, Status.ROLLED_BACK]
    with pytest.raises(system.INVALID_TRANSACTION):
        asked.decide(_name(lease), ())
