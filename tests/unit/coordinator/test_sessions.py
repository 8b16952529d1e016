"""Sessions and the names they lease: what every name is, and who may still use it."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from coordinator import sessions as sessions_module
from coordinator.sessions import Sessions, Standing, TooMany
from idl.mapping import InvalidValue
from idl.otids import (
    BLOCK_NUMBERS,
    TAG_BYTES,
    Gtrid,
    block_secret,
    decode_gtrid,
    is_of_coordinator,
    issue,
    prefix_of,
)

IDENTITY = b"we are 1"
SECRETS = {1: b"the first secret", 2: b"a second secret."}
DURATION_S = 30.0


def _made(incarnation: int = 1, identity: bytes = IDENTITY) -> Sessions:
    known = {number: secret for number, secret in SECRETS.items() if number <= incarnation}
    return Sessions(identity, known, _randomness(), DURATION_S)


def _randomness() -> Callable[[int], bytes]:
    numbers = itertools.count(7)
    return lambda size: next(numbers).to_bytes(size)


def _named(sessions: Sessions, block: tuple[int, bytes], offset: int = 0) -> bytes:
    """A name as a client makes it from its block."""
    first, secret = block
    return issue(sessions.prefix, secret, first + offset)


@pytest.fixture
def sessions() -> Sessions:
    return _made()


# --- Sessions ------------------------------------------------------------------------------------


def test_a_session_is_renewed_by_its_owner_until_it_falls_silent(sessions: Sessions) -> None:
    session = sessions.open("alice", now=100.0)
    assert sessions.renew(session.number, "alice", now=129.0) is session
    assert session.deadline == 159.0
    assert sessions.renew(session.number, "alice", now=158.9) is session
    assert sessions.renew(session.number, "alice", now=158.9 + DURATION_S) is None


def test_nobody_renews_the_session_of_another(sessions: Sessions) -> None:
    session = sessions.open("alice", now=100.0)
    assert sessions.renew(session.number, "mallory", now=101.0) is None
    assert session.deadline == 130.0


def test_a_session_that_never_was_is_not_renewed(sessions: Sessions) -> None:
    assert sessions.renew(5, "alice", now=0.0) is None
    assert sessions.renew(0, "alice", now=0.0) is None


def test_a_session_that_has_ended_is_not_renewed_and_may_end_again(sessions: Sessions) -> None:
    session = sessions.open("alice", now=100.0)
    sessions.end(session.number)
    sessions.end(session.number)
    assert sessions.renew(session.number, "alice", now=101.0) is None


def test_no_two_sessions_have_the_same_number_and_none_has_zero() -> None:
    numbers = iter([0, 3, 3, 0, 3, 4])
    sessions = Sessions(IDENTITY, SECRETS, lambda size: next(numbers).to_bytes(size), DURATION_S)
    assert sessions.open("alice", 0.0).number == 3
    assert sessions.open("bob", 0.0).number == 4


def test_silent_sessions_are_found_when_their_time_is_over(sessions: Sessions) -> None:
    assert sessions.next_deadline() is None
    first = sessions.open("alice", now=100.0)
    second = sessions.open("bob", now=110.0)
    assert sessions.next_deadline() == 130.0
    assert sessions.silent(now=129.9) == []
    assert sessions.silent(now=130.0) == [first.number]
    assert sessions.silent(now=140.0) == [first.number, second.number]
    sessions.end(first.number)
    assert sessions.silent(now=140.0) == [second.number]
    assert sessions.next_deadline() == 140.0


def test_the_number_of_sessions_is_limited(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions_module, "SESSIONS_MAX", 2)
    first = sessions.open("alice", 0.0)
    sessions.open("alice", 0.0)
    with pytest.raises(TooMany, match="2 sessions are open"):
        sessions.open("alice", 0.0)
    sessions.end(first.number)
    sessions.open("alice", 0.0)


def test_nobody_has_more_sessions_than_one_principal_may_have() -> None:
    sessions = Sessions(IDENTITY, SECRETS, _randomness(), DURATION_S, per_owner_max=2)
    first = sessions.open("alice", 0.0)
    sessions.open("alice", 0.0)
    with pytest.raises(TooMany, match="2 sessions of alice are open"):
        sessions.open("alice", 0.0)
    sessions.open("bob", 0.0)
    sessions.end(first.number)
    sessions.end(first.number)
    sessions.open("alice", 0.0)
    with pytest.raises(TooMany):
        sessions.open("alice", 0.0)


# --- Blocks --------------------------------------------------------------------------------------


def test_no_number_is_given_twice(sessions: Sessions) -> None:
    alice, bob = sessions.open("alice", 0.0), sessions.open("bob", 0.0)
    firsts = [sessions.lease(each, 0)[0] for each in (alice, bob, alice)]
    own = {decode_gtrid(sessions.issue()).number for _ in range(2 * BLOCK_NUMBERS + 1)}
    assert len(own) == 2 * BLOCK_NUMBERS + 1
    leased = {first + offset for first in firsts for offset in range(BLOCK_NUMBERS)}
    assert len(leased) == 3 * BLOCK_NUMBERS
    assert not own & leased


def test_a_name_tells_whether_a_client_or_the_coordinator_has_given_it(sessions: Sessions) -> None:
    leased = sessions.lease(sessions.open("alice", now=0.0), 0)
    for offset in (0, BLOCK_NUMBERS - 1):
        assert not is_of_coordinator(_named(sessions, leased, offset))
    assert all(is_of_coordinator(sessions.issue()) for _ in range(BLOCK_NUMBERS + 1))


def test_every_block_has_a_secret_of_its_own(sessions: Sessions) -> None:
    session = sessions.open("alice", 0.0)
    blocks = [sessions.lease(session, 0) for _ in range(3)]
    assert len({secret for _, secret in blocks}) == 3
    assert [secret for _, secret in blocks] == [block_secret(SECRETS[1], f) for f, _ in blocks]


def test_blocks_are_dropped_once_all_their_transactions_are_over(sessions: Sessions) -> None:
    session = sessions.open("alice", 0.0)
    first, second = sessions.lease(session, 0), sessions.lease(session, 0)
    third = sessions.lease(session, oldest=second[0])
    assert sorted(session.blocks) == [second[0], third[0]]
    assert sessions.standing(_named(sessions, first)) is Standing.OVER
    assert sessions.standing(_named(sessions, second)) is Standing.UNDECIDED
    assert sessions.holder(_named(sessions, first)) is None


def test_a_block_stays_as_long_as_one_of_its_transactions_is_not_over(sessions: Sessions) -> None:
    session = sessions.open("alice", 0.0)
    first = sessions.lease(session, 0)
    sessions.lease(session, oldest=first[0] + BLOCK_NUMBERS - 1)
    assert first[0] in session.blocks
    sessions.lease(session, oldest=first[0] + BLOCK_NUMBERS)
    assert first[0] not in session.blocks


def test_the_number_of_blocks_of_a_session_is_limited(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions_module, "BLOCKS_MAX", 2)
    session = sessions.open("alice", 0.0)
    sessions.lease(session, 0)
    second, _ = sessions.lease(session, 0)
    with pytest.raises(TooMany, match="2 blocks"):
        sessions.lease(session, 0)
    sessions.lease(session, oldest=second)
    sessions.lease(sessions.open("bob", 0.0), 0)


# --- What a name is ------------------------------------------------------------------------------


def test_a_name_of_a_living_session_is_undecided_until_it_is_noted(sessions: Sessions) -> None:
    session = sessions.open("alice", 0.0)
    block = sessions.lease(session, 0)
    names = [_named(sessions, block, offset) for offset in (0, 1, BLOCK_NUMBERS - 1)]
    assert [sessions.standing(name) for name in names] == 3 * [Standing.UNDECIDED]
    assert [sessions.holder(name) for name in names] == 3 * [session]
    sessions.note(names[0], is_committed=True)
    sessions.note(names[2], is_committed=False)
    assert [sessions.standing(name) for name in names] == [
        Standing.COMMITTED,
        Standing.UNDECIDED,
        Standing.ROLLED_BACK,
    ]


def test_all_names_of_an_ended_session_are_over(sessions: Sessions) -> None:
    session = sessions.open("alice", 0.0)
    block = sessions.lease(session, 0)
    decided, undecided = _named(sessions, block, 0), _named(sessions, block, 1)
    sessions.note(decided, is_committed=True)
    sessions.end(session.number)
    assert sessions.standing(decided) is Standing.OVER
    assert sessions.standing(undecided) is Standing.OVER
    assert sessions.holder(undecided) is None
    # Nothing is remembered of it any more, and that is no error.
    sessions.note(undecided, is_committed=True)
    assert sessions.standing(undecided) is Standing.OVER


def test_the_end_of_one_session_leaves_the_names_of_others_alone(sessions: Sessions) -> None:
    alice, bob = sessions.open("alice", 0.0), sessions.open("bob", 0.0)
    name = _named(sessions, sessions.lease(bob, 0))
    sessions.lease(alice, 0)
    sessions.end(alice.number)
    assert sessions.standing(name) is Standing.UNDECIDED


def test_a_leased_name_of_an_earlier_incarnation_is_over() -> None:
    earlier = _made(1)
    name = _named(earlier, earlier.lease(earlier.open("alice", 0.0), 0))
    later = _made(2)
    # A session of this incarnation holds the block with the same number.
    later.lease(later.open("alice", 0.0), 0)
    assert later.standing(name) is Standing.OVER
    assert later.holder(name) is None
    later.note(name, is_committed=True)
    assert later.standing(name) is Standing.OVER


def test_a_name_that_the_coordinator_gave_itself_is_lost_with_its_incarnation() -> None:
    earlier = _made(1)
    name = earlier.issue()
    assert earlier.standing(name) is Standing.OVER
    assert _made(2).standing(name) is Standing.LOST


def test_a_name_that_clients_share_is_over_with_its_incarnation() -> None:
    earlier = _made(1)
    names = [earlier.issue(is_shared=bool(number % 2)) for number in range(4)]
    assert {earlier.standing(name) for name in names} == {Standing.OVER}
    later = [_made(2).standing(name) for name in names]
    assert later == [Standing.LOST, Standing.OVER, Standing.LOST, Standing.OVER]


def test_a_name_of_an_incarnation_that_the_log_does_not_know_is_foreign() -> None:
    later = _made(2)
    name = _named(later, later.lease(later.open("alice", 0.0), 0))
    assert _made(1).standing(name) is Standing.FOREIGN


def test_a_name_of_another_coordinator_is_foreign(sessions: Sessions) -> None:
    other = _made(identity=b"they are")
    name = _named(other, other.lease(other.open("alice", 0.0), 0))
    assert sessions.standing(name) is Standing.FOREIGN


@pytest.mark.parametrize("position", range(TAG_BYTES))
def test_a_name_with_a_wrong_tag_is_foreign(sessions: Sessions, position: int) -> None:
    parts = decode_gtrid(_named(sessions, sessions.lease(sessions.open("alice", 0.0), 0)))
    tag = bytearray(parts.tag)
    tag[position] ^= 1
    assert sessions.standing(parts._replace(tag=bytes(tag)).encoded()) is Standing.FOREIGN


def test_with_the_secret_of_one_block_no_name_of_another_can_be_made(sessions: Sessions) -> None:
    alice, bob = sessions.open("alice", 0.0), sessions.open("bob", 0.0)
    (_, secret), (others, _) = sessions.lease(alice, 0), sessions.lease(bob, 0)
    assert sessions.standing(_named(sessions, (others, secret))) is Standing.FOREIGN


def test_with_a_secret_of_this_incarnation_no_name_of_another_can_be_made() -> None:
    later = _made(2)
    first, secret = later.lease(later.open("alice", 0.0), 0)
    assert later.standing(issue(prefix_of(IDENTITY, 1), secret, first)) is Standing.FOREIGN


@pytest.mark.parametrize("name", [b"", b"too short", bytes(33)])
def test_what_is_no_name_at_all_is_refused(sessions: Sessions, name: bytes) -> None:
    for ask in (sessions.standing, sessions.holder):
        with pytest.raises(InvalidValue):
            ask(name)


def test_every_name_that_was_given_is_known_to_be(sessions: Sessions) -> None:
    for _ in range(BLOCK_NUMBERS + 1):
        assert sessions.standing(sessions.issue()) is not Standing.FOREIGN
    assert sessions.standing(Gtrid(IDENTITY, 1, 0, bytes(TAG_BYTES)).encoded()) is Standing.FOREIGN
