"""A server's word before its answer: one whole frame, or the end of the connection."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from idl.call import Call, Principal, foretelling, serve_within
from idl.orb import frames
from idl.orb.guard import Policy
from idl.orb.server import _Peer

KEY = bytes(range(16))
POLICY = Policy(
    kinds=frozenset({frames.RESULT}),
    serializer=frames.MSGPACK,
    flags_allowed=frames.HAS_REQUEST_ID | frames.FORETOLD,
    frame_bytes_max=1000,
    annotation_bytes_max=100,
    start=frames.start_of(frames.RESULT),
)


@pytest.fixture
def ends() -> Iterator[tuple[_Peer, socket.socket]]:
    """A peer as the server has it, and the peer's own end."""
    here, there = socket.socketpair()
    peer = _Peer(here, "127.0.0.1")
    yield peer, there
    peer.close()
    there.close()


def test_the_word_is_a_frame_without_a_body_that_belongs_to_its_call(
    ends: tuple[_Peer, socket.socket],
) -> None:
    peer, there = ends
    peer.seq = 7
    peer.foretell(KEY)
    told = frames.Stream(there).receive(POLICY, time.monotonic() + 1.0)
    assert told == (frames.RESULT, frames.FORETOLD, 7, KEY, b"", b"")


def test_a_peer_that_does_not_read_is_not_waited_for_and_let_go(
    ends: tuple[_Peer, socket.socket],
) -> None:
    peer, there = ends
    while peer.send_at_once(bytes(1000)):
        pass
    peer.foretell(KEY)
    there.setblocking(True)
    while there.recv(100_000):
        pass


def test_a_peer_that_is_gone_disturbs_nobody(ends: tuple[_Peer, socket.socket]) -> None:
    peer, there = ends
    there.close()
    peer.foretell(KEY)
    peer.foretell(KEY)


def test_who_serves_a_call_foretells_its_own_and_without_a_network_nothing_happens() -> None:
    told: list[bytes] = []
    call = Call(KEY, Principal("somebody"), "127.0.0.1", None, told.append)
    serve_within(call, lambda: foretelling()(), ())
    assert told == [KEY]
    serve_within(call._replace(foretell=None), lambda: foretelling()(), ())
    assert told == [KEY]
