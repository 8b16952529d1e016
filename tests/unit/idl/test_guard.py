"""What is let in: every frame but the expected one is refused, and newcomers always find room."""

from __future__ import annotations

import pytest

from idl.orb.guard import Gate, Header, Limits, Policy, Refusals, judge

POLICY = Policy(
    kinds=frozenset({4}),
    serializer=4,
    flags_allowed=0x40,
    frame_bytes_max=1000,
    annotation_bytes_max=100,
)
FINE = Header(kind=4, serializer=4, flags=0x40, data_bytes=900, annotation_bytes=100)


def test_the_expected_frame_is_let_in_up_to_the_last_byte() -> None:
    assert judge(FINE, POLICY) is None


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (FINE._replace(kind=1), "message type 1"),
        (FINE._replace(serializer=2), "serializer 2"),
        (FINE._replace(flags=0x42), "flags 0x42"),
        (FINE._replace(annotation_bytes=101, data_bytes=0), "101 bytes of annotations"),
        (FINE._replace(data_bytes=901), "1001 bytes"),
    ],
)
def test_any_other_frame_is_refused_with_its_reason(header: Header, reason: str) -> None:
    assert judge(header, POLICY) == reason


@pytest.mark.parametrize("bit", range(16))
def test_no_flag_but_the_allowed_one_is_let_in(bit: int) -> None:
    verdict = judge(FINE._replace(flags=1 << bit), POLICY)
    assert (verdict is None) == (1 << bit == 0x40)


def test_refusals_are_held_back_after_so_many_and_only_for_who_had_them() -> None:
    refusals = Refusals(Limits(refusals_at_once=3, refusals_per_s=2.0))
    assert [refusals.wait_s("bob", 10.0) for _ in range(5)] == [0.0, 0.0, 0.0, 0.5, 1.0]
    assert refusals.wait_s("alice", 10.0) == 0.0
    # What was not used while nothing was asked is there again, and never more than that.
    assert refusals.wait_s("bob", 13.0) == 0.0
    assert [refusals.wait_s("bob", 1000.0) for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]


def test_who_was_refused_long_ago_is_not_remembered() -> None:
    refusals = Refusals(Limits(refusals_at_once=3, refusals_per_s=2.0))
    for number in range(1000):
        refusals.wait_s(f"guest {number}", float(number))
    assert len(refusals) <= 3


def gate(inside: int, waiting: int) -> Gate[str]:
    return Gate(Limits(connections_max=inside, connections_before_login_max=waiting))


def test_a_newcomer_takes_the_place_of_whoever_waited_longest() -> None:
    doors = gate(inside=10, waiting=2)
    assert doors.arrive("a") is None
    assert doors.arrive("b") is None
    assert doors.arrive("c") == "a"
    assert not doors.enter("a")
    assert doors.enter("b")
    assert doors.everyone() == ["c", "b"]


def test_peers_that_proved_themselves_are_never_turned_away() -> None:
    doors = gate(inside=1, waiting=5)
    doors.arrive("a")
    doors.arrive("b")
    assert doors.enter("a")
    assert not doors.enter("b")
    assert doors.arrive("c") == "c"
    doors.leave("a")
    assert doors.enter("b")


def test_whoever_leaves_makes_room_and_may_leave_twice() -> None:
    doors = gate(inside=1, waiting=1)
    doors.arrive("a")
    doors.leave("a")
    doors.leave("a")
    assert doors.arrive("b") is None
