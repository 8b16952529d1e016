"""The thread that listens to all peers, and the helpers who do what takes long."""

from __future__ import annotations

import os
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


def test_who_comes_alone_goes_on_at_once_however_often_it_gives_way() -> None:
    done: SimpleQueue[float] = SimpleQueue()

    def attend(talker: Talker) -> None:
        talker.hear()
        begun = time.monotonic()
        for _ in range(3):
            give_way()
        done.put(time.monotonic() - begun)

    room = Hall(attend)
    try:
        for talker in room.talkers:
            talker.say(b"!")
            assert done.get(timeout=SOON_S) < SOON_S / 5
    finally:
        room.close()


def test_those_who_came_together_and_give_way_again_are_not_left_waiting() -> None:
    done: SimpleQueue[float] = SimpleQueue()

    def attend(talker: Talker) -> None:
        talker.hear()
        if talker is room.talkers[2]:
            room.talkers[0].say(b"!")
            room.talkers[1].say(b"!")
            return
        begun = time.monotonic()
        for _ in range(3):
            give_way()
        done.put(time.monotonic() - begun)

    room = Hall(attend)
    try:
        room.talkers[2].say(b"!")
        for _ in range(2):
            assert done.get(timeout=SOON_S) < SOON_S / 5
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


class Lobby:
    """A hall in which `wait` means to wait for a word from elsewhere; all else is told at once."""

    def __init__(self, patience_s: float = SOON_S) -> None:
        self.told: SimpleQueue[object] = SimpleQueue()
        self.elsewhere, self.far_end = socket.socketpair()
        self._patience_s = patience_s
        self.hall = Hall(self._attend)

    def _attend(self, talker: Talker) -> None:
        word = talker.hear()
        if word == b"wait":
            turns = turns_here()
            assert turns is not None
            self.told.put("waits")
            late = time.monotonic() + self._patience_s
            self.told.put(turns.wait(self.elsewhere.fileno(), select.POLLIN, late))
        else:
            self.told.put(word)

    def say(self, word: bytes, talker: int = 0) -> None:
        self.hall.talkers[talker].say(word)

    def next(self) -> object:
        return self.told.get(timeout=SOON_S)

    def renew(self) -> None:
        """Elsewhere is another socket, with the number that the one before had."""
        another, far_end = socket.socketpair()
        with another:
            os.dup2(another.fileno(), self.elsewhere.fileno())
        self.far_end.close()
        self.far_end = far_end

    def __enter__(self) -> Lobby:
        return self

    def __exit__(self, *failed: object) -> None:
        self.hall.close()
        self.elsewhere.close()
        self.far_end.close()


def test_who_waits_for_something_goes_on_when_it_has_come_and_others_are_heard_before() -> None:
    with Lobby() as lobby:
        lobby.say(b"wait")
        assert lobby.next() == "waits"
        lobby.say(b"another", talker=1)
        assert lobby.next() == b"another"
        lobby.far_end.send(b"!")
        assert lobby.next() is True


@pytest.mark.parametrize("is_another", [False, True])
def test_what_was_waited_for_is_waited_for_again_or_another_with_its_number(
    is_another: bool,
) -> None:
    with Lobby() as lobby:
        for _ in range(3):
            lobby.say(b"wait")
            assert lobby.next() == "waits"
            lobby.far_end.send(b"!")
            assert lobby.next() is True
            assert lobby.elsewhere.recv(1) == b"!"
            if is_another:
                lobby.renew()


@pytest.mark.parametrize("patience_s", [0.0, 0.05])
def test_who_waits_too_long_goes_on_without(patience_s: float) -> None:
    with Lobby(patience_s) as lobby:
        for _ in range(2):
            lobby.say(b"wait")
            assert lobby.next() == "waits"
            assert lobby.next() is False
        # What comes too late is nobody's, and others are heard as before.
        lobby.far_end.send(b"!")
        lobby.say(b"another", talker=1)
        assert lobby.next() == b"another"


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_all_may_wait_at_once_and_go_on_in_any_order(order: tuple[int, ...]) -> None:
    told: SimpleQueue[tuple[int, str]] = SimpleQueue()
    elsewhere = [socket.socketpair() for _ in range(3)]

    def attend(talker: Talker) -> None:
        talker.hear()
        number = room.talkers.index(talker)
        turns = turns_here()
        assert turns is not None
        told.put((number, "waits"))
        near = elsewhere[number][0]
        assert turns.wait(near.fileno(), select.POLLIN, time.monotonic() + SOON_S)
        near.recv(1)
        give_way()
        told.put((number, "goes on"))

    room = Hall(attend)
    try:
        # Each comes alone, and who listened before is needed again in the next rounds.
        for _ in range(3):
            for number, talker in enumerate(room.talkers):
                talker.say(b"!")
                assert told.get(timeout=SOON_S) == (number, "waits")
            for number in order:
                elsewhere[number][1].send(b"!")
                assert told.get(timeout=SOON_S) == (number, "goes on")
    finally:
        room.close()
        for end in (end for pair in elsewhere for end in pair):
            end.close()


def test_a_pump_that_closes_lets_nobody_wait() -> None:
    with Lobby() as lobby:
        lobby.say(b"wait")
        assert lobby.next() == "waits"
        lobby.hall.close()
        assert lobby.next() is False
