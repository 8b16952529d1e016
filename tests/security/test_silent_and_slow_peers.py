"""Whoever says nothing, says it slowly or does not listen keeps nobody else waiting."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from idl import mq, system
from tests.security.attacker import INVOKE, Forged, Wire, call, login
from tests.security.authority import Authority
from tests.security.watched import (
    HONEST,
    SERVED_WITHIN_S,
    SLACK_S,
    Watched,
)

# How much later than its deadline a peer may be cut on a machine that is shared with other tests.
LATE_S = 0.6
SILENT_PEERS = 200
FLOOD_CONNECTIONS = 1000
FLOOD_S_MAX = 3.0


@contextlib.contextmanager
def many(count: int, connect: Callable[[], Wire]) -> Iterator[list[Wire]]:
    """So many connections at once; all of them are gone afterwards."""
    wires: list[Wire] = []
    try:
        for _ in range(count):
            wires.append(connect())
        yield wires
    finally:
        for wire in wires:
            wire.reset()


# S6
def test_one_silent_connection_does_not_keep_others_from_tls(tls_victim: Watched) -> None:
    with tls_victim.unharmed(), Wire.to(tls_victim.address) as silent:
        tls_victim.serve_newcomer()
        assert silent.is_cut(tls_victim.limits.handshake_s + LATE_S)


# S7
def test_two_hundred_silent_connections_are_cut_and_newcomers_are_served(crowded: Watched) -> None:
    before = crowded.measure()
    with crowded.unharmed(), many(SILENT_PEERS, lambda: Wire.to(crowded.address)) as silent:
        # Whoever comes last is served only after all the others were let into the waiting room.
        crowded.serve_newcomer()
        during = crowded.measure()
        # Only the newcomer had a thread, and perhaps a helper: who says nothing gets none.
        assert during.threads - before.threads <= 2
        deadline = time.monotonic() + crowded.limits.handshake_s + LATE_S
        assert all(wire.is_cut(max(deadline - time.monotonic(), 0.05)) for wire in silent)
        # They are still held open on the attacker's side.
        crowded.wait_until_calm(before, SLACK_S)


# S7
def test_two_hundred_silent_connections_do_not_keep_others_from_tls(tls_victim: Watched) -> None:
    with tls_victim.unharmed(), many(SILENT_PEERS, lambda: Wire.to(tls_victim.address)):
        tls_victim.serve_newcomer()


# S7
def test_a_client_that_was_let_in_is_served_during_a_flood_of_connections(crowded: Watched) -> None:
    with crowded.unharmed(), contextlib.closing(crowded.honest_orb()) as orb:
        service = orb.proxy(crowded.reference("service"), mq.Mq_Service)
        service.isEnabled()
        flood = threading.Thread(target=_connect_and_close, args=(crowded,))
        flood.start()
        slowest = 0.0
        while flood.is_alive():
            begun = time.monotonic()
            assert service.isEnabled() is True
            slowest = max(slowest, time.monotonic() - begun)
        flood.join()
        assert slowest < SERVED_WITHIN_S


# S7
def test_a_newcomer_gets_in_during_a_flood_when_it_tries_again(crowded: Watched) -> None:
    with crowded.unharmed():
        flood = threading.Thread(target=_connect_and_close, args=(crowded,))
        flood.start()
        deadline = time.monotonic() + FLOOD_S_MAX
        try:
            while True:
                try:
                    crowded.serve_newcomer()
                    break
                except system.TRANSIENT:
                    assert time.monotonic() < deadline
        finally:
            flood.join()


def _connect_and_close(crowded: Watched) -> None:
    end = time.monotonic() + FLOOD_S_MAX
    for _ in range(FLOOD_CONNECTIONS):
        if time.monotonic() > end:
            return
        with contextlib.suppress(OSError):
            Wire.to(crowded.address).reset()


# S8
@pytest.mark.parametrize("late_s", [0.0, 0.8])
def test_a_login_that_drips_is_cut_at_the_deadline(victim: Watched, late_s: float) -> None:
    with victim.unharmed(), victim.connect() as wire:
        begun = time.monotonic()
        time.sleep(late_s)
        wire.drip(login(HONEST).encode(), 0.05, within_s=3.0)
        assert time.monotonic() - begun < victim.limits.handshake_s + LATE_S


# S8
def test_a_tls_greeting_that_drips_is_cut_at_the_deadline(
    tls_victim: Watched, authority: Authority
) -> None:
    with tls_victim.unharmed(), Wire.to(tls_victim.address) as wire:
        begun = time.monotonic()
        wire.drip(_client_hello(authority), 0.05, within_s=3.0)
        assert time.monotonic() - begun < tls_victim.limits.handshake_s + LATE_S


# S8
def test_a_login_that_drips_after_a_late_tls_greeting_is_cut_at_the_deadline(
    tls_victim: Watched, authority: Authority
) -> None:
    with tls_victim.unharmed(), Wire.to(tls_victim.address) as wire:
        begun = time.monotonic()
        time.sleep(0.8)
        context = authority.careless_client()
        wire.sock = context.wrap_socket(wire.sock, server_hostname="127.0.0.1")
        wire.drip(login(HONEST).encode(), 0.05, within_s=3.0)
        assert time.monotonic() - begun < tls_victim.limits.handshake_s + LATE_S


# S8
@pytest.mark.parametrize("sent_at_once", [0, 41], ids=["in the header", "in the body"])
def test_a_request_that_drips_is_cut_at_the_deadline(victim: Watched, sent_at_once: int) -> None:
    forged = call(1, "service", "setEnabled", True).encode()
    with victim.unharmed(), victim.logged_in() as wire:
        begun = time.monotonic()
        wire.send(forged[:sent_at_once])
        wire.drip(forged[sent_at_once:], 0.05, within_s=3.0)
        assert time.monotonic() - begun < victim.limits.message_s + LATE_S


# S3, S8
def test_announced_bytes_that_never_come_are_not_waited_for(victim: Watched) -> None:
    announced = Forged(INVOKE, seq=1, announced_bytes=victim.limits.message_bytes_max - 12)
    with victim.unharmed(), many(30, victim.logged_in) as wires:
        for wire in wires:
            wire.send(announced)
        victim.serve_newcomer()
        assert all(wire.is_cut(victim.limits.message_s + LATE_S) for wire in wires)


def test_a_client_that_was_let_in_and_falls_silent_is_let_go(victim: Watched) -> None:
    with victim.unharmed(), victim.logged_in() as wire:
        begun = time.monotonic()
        assert wire.is_cut(victim.limits.idle_s + LATE_S)
        assert time.monotonic() - begun > victim.limits.idle_s - 0.1


# S8
@pytest.mark.parametrize("name", ["crowded", "threaded", "tls_victim"])
@pytest.mark.parametrize("sip_bytes", [0, 1000], ids=["never reads", "reads by the sip"])
def test_a_client_that_does_not_read_its_answers_is_let_go(
    name: str, sip_bytes: int, request: pytest.FixtureRequest
) -> None:
    watched: Watched = request.getfixturevalue(name)
    before = watched.measure()
    count = 20
    with watched.unharmed(), _deaf(watched) as wire:
        wire.answer(login(HONEST))
        wire.send(*(call(seq, "standard", "mqRead", "900000") for seq in range(1, count + 1)))
        watched.serve_newcomer()
        deadline = time.monotonic() + watched.limits.message_s + SLACK_S
        while time.monotonic() < deadline and watched.measure().threads > before.threads:
            time.sleep(0.05)
            if sip_bytes:
                with contextlib.suppress(OSError):
                    wire.sock.recv(sip_bytes)
        watched.wait_until_calm(before, 0.1)


def _deaf(watched: Watched) -> Wire:
    """A connection that takes in very little before it must be read."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect((watched.address.host, watched.address.port))
    if watched.client_tls is not None:
        context = watched.client_tls.client_context()
        sock = context.wrap_socket(sock, server_hostname=watched.address.host)
    return Wire(sock)


def _client_hello(authority: Authority) -> bytes:
    outgoing = ssl.MemoryBIO()
    greeting = authority.careless_client().wrap_bio(
        ssl.MemoryBIO(), outgoing, server_hostname="127.0.0.1"
    )
    with contextlib.suppress(ssl.SSLWantReadError):
        greeting.do_handshake()
    return outgoing.read()
