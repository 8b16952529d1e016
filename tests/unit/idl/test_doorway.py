"""Who only knocks is let go, who is silent waits without a thread, and who speaks is handed on."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
import time
from collections.abc import Iterator

import pytest

from idl.orb.doorway import ACCEPTED_TOGETHER, Doorway
from idl.orb.server import _Peer

PATIENCE_S = 5.0


class Door:
    """A doorway, those who knock at it, and who was admitted."""

    def __init__(self, silent_s: float = PATIENCE_S) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.silent_s = silent_s
        self.admitted: list[_Peer] = []
        self.has_room = True
        self.clients: list[socket.socket] = []
        self.peers: list[_Peer] = []
        self.doorway: Doorway[_Peer] = Doorway(self.listener, self._made, self._admit)

    def _made(self, sock: socket.socket, host: str) -> _Peer:
        self.peers.append(_Peer(sock, host, time.monotonic() + self.silent_s))
        return self.peers[-1]

    def _admit(self, peer: _Peer) -> bool:
        self.admitted.append(peer)
        return self.has_room

    def knock(self, said: bytes = b"") -> socket.socket:
        """Somebody connects, and says this."""
        client = socket.create_connection(self.listener.getsockname()[:2], timeout=PATIENCE_S)
        self.clients.append(client)
        client.sendall(said)
        return client

    def until(self, count: int) -> tuple[list[_Peer], list[_Peer]]:
        """Who has spoken and who is to be let go, once it is so many in all."""
        spoken: list[_Peer] = []
        gone: list[_Peer] = []
        deadline = time.monotonic() + PATIENCE_S
        while len(spoken) + len(gone) < count and time.monotonic() < deadline:
            more, fewer = self.doorway.wait()
            spoken += more
            gone += fewer
        return spoken, gone

    def close(self) -> None:
        """Nothing of it is left."""
        self.doorway.close()
        self.listener.close()
        for client in self.clients:
            client.close()
        for peer in self.peers:
            peer.close()


@pytest.fixture
def door() -> Iterator[Door]:
    with contextlib.closing(Door()) as made:
        yield made


def test_who_speaks_is_handed_on_with_all_that_was_said(door: Door) -> None:
    door.knock(b"hello")
    spoken, gone = door.until(1)
    assert ([peer.sock.recv(10) for peer in spoken], gone) == ([b"hello"], [])
    assert door.admitted == spoken


def test_who_speaks_later_is_handed_on_then(door: Door) -> None:
    client = door.knock()
    assert door.doorway.wait() == ([], [])
    client.sendall(b"at last")
    spoken, gone = door.until(1)
    assert (len(spoken), gone) == (1, [])
    assert door.doorway.close() == []


def test_who_leaves_before_being_accepted_takes_nobodys_place(door: Door) -> None:
    client = door.knock()
    # So that the end is there before anybody looks.
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    spoken, gone = door.until(1)
    assert (spoken, len(gone), door.admitted) == ([], 1, [])


def test_who_waited_and_leaves_is_let_go(door: Door) -> None:
    client = door.knock()
    door.doorway.wait()
    client.close()
    assert door.until(1) == ([], door.admitted)


def test_who_lost_the_place_to_another_is_let_go(door: Door) -> None:
    door.knock()
    door.doorway.wait()
    door.admitted[0].interrupt()
    assert door.until(1) == ([], door.admitted)


def test_who_is_silent_for_too_long_is_let_go_and_others_wait_on() -> None:
    with contextlib.closing(Door(silent_s=0.05)) as door:
        door.knock()
        door.doorway.wait()
        door.silent_s = PATIENCE_S
        door.knock()
        door.doorway.wait()
        first, second = door.admitted
        assert door.until(1) == ([], [first])
        assert door.doorway.close() == [second]


def test_who_finds_no_room_is_not_waited_for(door: Door) -> None:
    door.has_room = False
    door.knock(b"hello")
    assert door.doorway.wait() == ([], [])
    assert door.doorway.close() == []


def test_a_crowd_does_not_keep_those_from_their_turn_who_have_spoken(door: Door) -> None:
    early = door.knock()
    door.doorway.wait()
    for _ in range(ACCEPTED_TOGETHER + 10):
        door.knock()
    early.sendall(b"hello")
    spoken, _ = door.until(1)
    assert spoken == door.admitted[:1]
    assert len(door.admitted) <= 1 + 2 * ACCEPTED_TOGETHER


class Full(socket.socket):
    """A listening socket of a process that has no file descriptors left."""

    is_full = False

    def accept(self) -> tuple[socket.socket, object]:
        """Somebody, unless there is no room."""
        if self.is_full:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().accept()


def test_who_has_spoken_is_not_lost_when_nobody_can_be_accepted(door: Door) -> None:
    with Full(fileno=os.dup(door.listener.fileno())) as listener:
        doorway = Doorway(listener, door._made, door._admit)
        early = door.knock()
        doorway.wait()
        door.knock()
        early.sendall(b"hello")
        listener.is_full = True
        assert doorway.wait()[0] == door.admitted
        with pytest.raises(OSError, match="Too many open files"):
            doorway.wait()
        doorway.close()
