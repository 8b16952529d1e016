"""The thread that listens to all peers, and the helpers who do what takes long."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from queue import SimpleQueue

import pytest

from idl.orb.pump import Helpers, Pump
from idl.turns import give_way, turns_here

SOON_S = 5.0


@dataclass(eq=False)
class Talker:
    """A peer, and the other end of its connection."""

    ends: tuple[socket.socket, socket.socket] = field(default_factory=socket.socketpair)
    descriptor: int = 0
    is_listened_to: bool = False
    quiet_since: float = 0.0

    def __post_init__(self) -> None:
        self.descriptor = self.ends[0].fileno()

    def say(self, word: bytes) -> None:
        """The peer sends something."""
        self.ends[1].send(word)

    def hear(self) -> bytes:
        """What it has sent."""
        return self.ends[0].recv(100)

    def close(self) -> None:
        """Both ends are gone."""
        for end in self.ends:
            end.close()


Attend = Callable[[Talker], None]


class Hall:
    """A pump with peers, and what was heard of them."""

    def __init__(self, attend: Attend | None = None, idle_s: float = 60.0) -> None:
        self.heard: SimpleQueue[tuple[Talker, bytes]] = SimpleQueue()
        self.dismissed: SimpleQueue[Talker] = SimpleQueue()
        self.pump: Pump[Talker] = Pump(attend or self.note, self.dismissed.put, idle_s)
        self.talkers = [Talker() for _ in range(3)]
        for talker in self.talkers:
            self.pump.listen_to(talker)

    def note(self, talker: Talker) -> None:
        """What the peer has sent is noted."""
        self.heard.put((talker, talker.hear()))

    def close(self) -> None:
        """Everybody is gone."""
        for talker in self.talkers:
            self.pump.turn_from(talker)
            talker.close()
        self.pump.close()


@pytest.fixture
def hall() -> Iterator[Hall]:
    made = Hall()
    yield made
    made.close()


def test_whoever_sends_something_is_attended_to(hall: Hall) -> None:
    for talker in (hall.talkers[1], hall.talkers[0], hall.talkers[1]):
        talker.say(b"hello")
        assert hall.heard.get(timeout=SOON_S) == (talker, b"hello")


def test_one_whom_nobody_listens_to_is_heard_when_somebody_does_again(hall: Hall) -> None:
    first, second, _ = hall.talkers
    hall.pump.turn_from(first)
    first.say(b"early")
    second.say(b"now")
    assert hall.heard.get(timeout=SOON_S) == (second, b"now")
    assert hall.heard.empty()
    hall.pump.listen_to(first)
    assert hall.heard.get(timeout=SOON_S) == (first, b"early")


def test_who_gives_way_goes_on_after_those_who_are_ready() -> None:
    order: SimpleQueue[str] = SimpleQueue()
    names: dict[Talker, str] = {}

    def attend(talker: Talker) -> None:
        talker.hear()
        if names[talker] == "c":
            # Both have sent something when its turn is over.
            room.talkers[0].say(b"!")
            room.talkers[1].say(b"!")
            return
        order.put("begins")
        give_way()
        order.put("goes on")

    room = Hall(attend)
    names.update(zip(room.talkers, "abc", strict=True))
    try:
        room.talkers[2].say(b"!")
        seen = [order.get(timeout=SOON_S) for _ in range(4)]
    finally:
        room.close()
    assert seen == ["begins", "begins", "goes on", "goes on"]


def test_those_who_gave_way_go_on_although_somebody_never_stops_talking() -> None:
    went_on = threading.Event()

    def attend(talker: Talker) -> None:
        talker.hear()
        if talker is room.talkers[0]:
            give_way()
            went_on.set()
        elif not went_on.is_set():
            talker.say(b"and again")

    room = Hall(attend)
    try:
        room.talkers[1].say(b"!")
        room.talkers[0].say(b"!")
        assert went_on.wait(SOON_S)
    finally:
        room.close()


def test_whoever_is_quiet_for_too_long_is_dismissed() -> None:
    room = Hall(idle_s=0.05)
    try:
        assert room.dismissed.get(timeout=SOON_S) in room.talkers
    finally:
        room.close()


def test_a_pump_can_be_closed_twice(hall: Hall) -> None:
    hall.close()


def test_a_helper_is_used_again() -> None:
    helpers = Helpers()
    done: SimpleQueue[int] = SimpleQueue()

    def work() -> None:
        done.put(threading.get_ident())

    helpers.do(work)
    first = done.get(timeout=SOON_S)
    _until(lambda: helpers.idle == 1)
    helpers.do(work)
    assert done.get(timeout=SOON_S) == first


def test_two_works_at_once_have_two_helpers() -> None:
    helpers = Helpers()
    meeting = threading.Barrier(3)
    for _ in range(2):
        helpers.do(lambda: _met(meeting))
    _met(meeting)


def test_a_helper_without_work_leaves() -> None:
    helpers = Helpers(idle_s=0.01)
    seen: SimpleQueue[threading.Thread] = SimpleQueue()
    helpers.do(lambda: seen.put(threading.current_thread()))
    thread = seen.get(timeout=SOON_S)
    thread.join(SOON_S)
    assert not thread.is_alive()
    assert helpers.idle == 0


def _met(meeting: threading.Barrier) -> None:
    meeting.wait(SOON_S)


def _until(is_so: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(1000):
        if is_so():
            return
        pause.wait(0.005)
    raise AssertionError("that did not come about")


# --- Calls that wait for something from elsewhere


def test_who_waits_for_something_goes_on_when_it_has_come_and_others_are_heard_before() -> None:
    order: SimpleQueue[object] = SimpleQueue()
    elsewhere, far_end = socket.socketpair()

    def attend(talker: Talker) -> None:
        word = talker.hear()
        if word == b"wait":
            turns = turns_here()
            assert turns is not None
            order.put("waits")
            order.put(turns.wait(elsewhere.fileno(), select.POLLIN, time.monotonic() + SOON_S))
        else:
            order.put(word)

    room = Hall(attend)
    try:
        room.talkers[0].say(b"wait")
        assert order.get(timeout=SOON_S) == "waits"
        room.talkers[1].say(b"another")
        assert order.get(timeout=SOON_S) == b"another"
        far_end.send(b"!")
        assert order.get(timeout=SOON_S) is True
    finally:
        room.close()
        elsewhere.close()
        far_end.close()


@pytest.mark.parametrize("patience_s", [0.0, 0.05])
def test_who_waits_too_long_goes_on_without(patience_s: float) -> None:
    order: SimpleQueue[object] = SimpleQueue()
    elsewhere, far_end = socket.socketpair()

    def attend(talker: Talker) -> None:
        talker.hear()
        turns = turns_here()
        assert turns is not None
        order.put(turns.wait(elsewhere.fileno(), select.POLLIN, time.monotonic() + patience_s))

    room = Hall(attend)
    try:
        for _ in range(2):
            # Twice: it is not watched any more by then.
            room.talkers[0].say(b"!")
            assert order.get(timeout=SOON_S) is False
    finally:
        room.close()
        elsewhere.close()
        far_end.close()


def test_a_pump_that_closes_lets_nobody_wait() -> None:
    order: SimpleQueue[object] = SimpleQueue()
    elsewhere, far_end = socket.socketpair()

    def attend(talker: Talker) -> None:
        talker.hear()
        turns = turns_here()
        assert turns is not None
        order.put("waits")
        order.put(turns.wait(elsewhere.fileno(), select.POLLIN, time.monotonic() + SOON_S))

    room = Hall(attend)
    room.talkers[0].say(b"!")
    assert order.get(timeout=SOON_S) == "waits"
    room.close()
    assert order.get_nowait() is False
    elsewhere.close()
    far_end.close()
