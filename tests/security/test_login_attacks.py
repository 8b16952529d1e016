"""Whoever has not proven who they are gets no further than a few bytes and a short answer."""

from __future__ import annotations

import contextlib
import random
import socket
import zlib

import msgpack
import pytest

from idl import mq, system
from tests.integration.fault_proxy import FaultProxy, Pair
from tests.security.attacker import (
    BATCH,
    COMPRESSED,
    CONNECTED,
    HAS_REQUEST_ID,
    JSON,
    KEEPSERIALIZED,
    MARSHAL,
    NOT_CONNECTED,
    ONEWAY,
    PING,
    RESULT,
    SERPENT,
    Forged,
    Wire,
    call,
    describe,
    login,
)
from tests.security.watched import HONEST, Watched, wait_until

MEBIBYTE = 1024 * 1024


# S1
@pytest.mark.parametrize(
    "token",
    [
        None,
        "",
        ".",
        "honest.",
        "honest",
        HONEST[:-1],
        HONEST + "0",
        HONEST.upper(),
        HONEST.replace("honest", "nobody"),
        HONEST.encode(),
        [HONEST],
        {"honest": HONEST},
        {"__class__": "builtins.str", "state": HONEST},
        1,
        True,
        1e300,
        "honest." + "0" * 3000,
    ],
    ids=lambda token: repr(token)[:30],
)
def test_a_token_that_is_not_right_is_told_no_more_than_not_allowed(
    victim: Watched, token: object
) -> None:
    with victim.unharmed(), victim.connect() as wire:
        reply = wire.answer(login(token))
        assert reply.kind == NOT_CONNECTED
        assert reply.plain == "not allowed"
        assert wire.is_cut()


# S1
@pytest.mark.parametrize("token", [None, "honest." + "0" * 32, "nobody." + "0" * 32, [HONEST]])
def test_a_denied_login_has_its_line_in_the_audit(calm: Watched, token: object) -> None:
    since = calm.log_position()
    with calm.connect() as wire:
        wire.answer(login(token))
        assert wire.is_cut()
    [denied] = calm.audited("login denied", since)
    assert denied["host"] == "127.0.0.1"
    assert "000" not in str(denied)


# S1
def test_a_token_of_a_mebibyte_is_cut_at_the_header(calm: Watched) -> None:
    since = calm.log_position()
    with calm.unharmed(), calm.connect() as wire:
        wire.send(login("honest." + "0" * MEBIBYTE))
        assert wire.is_cut_at_once()
    assert wait_until(lambda: bool(calm.audited("frame refused", since)), 1.0)


def test_the_right_token_is_let_in(victim: Watched) -> None:
    with victim.unharmed(), victim.connect() as wire:
        assert wire.answer(login(HONEST)).kind == CONNECTED


def test_every_denial_has_the_same_bytes(victim: Watched) -> None:
    seen = set()
    for token in (None, "unknown." + "0" * 32, "honest." + "0" * 32, [1]):
        with victim.connect() as wire:
            seen.add(wire.answer(login(token)).raw)
    assert len(seen) == 1


# S5, S10, S16
@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"\xc1",
        msgpack.packb(None),
        msgpack.packb("hello"),
        msgpack.packb({"handshake": "hello", "object": "service"}),
        msgpack.packb({"handshake": {"oncemq": 2, "token": HONEST}, "object": "x"}),
        msgpack.packb({"handshake": {"oncemq": "1", "token": HONEST}, "object": "x"}),
        msgpack.packb({"handshake": {"__class__": "Pyro5.core.URI", "state": ["PYRO:x@y:1"]}}),
        msgpack.packb({"handshake": {"oncemq": 1, "token": msgpack.ExtType(5, b"x")}}),
        b"\x91" * 1000 + b"\x90",
        b"\x91" * 4000 + b"\x90",
        b"\xdd\xff\xff\xff\xff" + b"\x90" * 4000,
        b"\xdf\xff\xff\xff\xff" + b"\xa1a\x80" * 1000,
        b"\xdc\x0f\x00" + b"\x80" * 0xF00,
        b"\xdd\x00\x0f\x42\x40" * 800,
        b"\xdd\x00\x00\x0f\xa0" * 800,
        b"\xdf\x00\x0f\x42\x40\xa1a" * 580,
    ],
    ids=lambda said: repr(said)[:40],
)
def test_a_login_of_another_form_is_not_allowed(victim: Watched, said: bytes) -> None:
    with victim.unharmed(), victim.connect() as wire:
        reply = wire.answer(login(body=said))
        assert (reply.kind, reply.plain) == (NOT_CONNECTED, "not allowed")


def test_a_login_whose_digest_is_wrong_or_missing_is_told_so(victim: Watched) -> None:
    wrong = (b"OMQD", bytes(4))
    for beside in ((), (wrong,), (wrong, wrong), ((b"OMQD", b""),)):
        with victim.unharmed(), victim.connect() as wire:
            reply = wire.answer(login(HONEST, has_digest=False, annotations=beside))
            told = "not allowed: the login has no digest that fits it"
            assert (reply.kind, reply.plain) == (NOT_CONNECTED, told)


class AlteringProxy(FaultProxy):
    """Flips a bit of the first login."""

    has_altered = False

    def pass_on(self, pair: Pair, source: socket.socket, sink: socket.socket, frame: bytes) -> None:
        """See `FaultProxy.pass_on`."""
        if frame is pair.login and not self.has_altered:
            self.has_altered = True
            frame = frame[:-1] + bytes((frame[-1] ^ 1,))
        sink.sendall(frame)


def test_who_was_altered_on_the_way_may_try_again(victim: Watched) -> None:
    """It is honest: to be told "not allowed" would end what it is at."""
    with (
        contextlib.closing(AlteringProxy(0, victim.address, seed=0)) as proxy,
        contextlib.closing(victim.honest_orb()) as orb,
    ):
        service = orb.proxy(f"PYRO:service@{proxy.address}", mq.Mq_Service)
        with pytest.raises(system.TRANSIENT, match="damaged on the way") as refused:
            service.isEnabled()
        assert refused.value.completed is system.Completion.NO
        assert service.isEnabled()


# S5
def test_nested_logins_cost_the_server_next_to_nothing(victim: Watched) -> None:
    count = 20
    forged = login(body=b"\x91" * 4000 + b"\x90").encode()
    before = victim.measure()
    for _ in range(count):
        with victim.connect() as wire:
            wire.send(forged)
            wire.reply()
    assert (victim.measure().cpu_s - before.cpu_s) / count < 0.05


# S2, S4, S5, S9
@pytest.mark.parametrize(
    "forged",
    [
        login(HONEST, flags=HAS_REQUEST_ID | COMPRESSED),
        login(HONEST, flags=HAS_REQUEST_ID | ONEWAY),
        login(HONEST, flags=HAS_REQUEST_ID | BATCH),
        login(HONEST, flags=HAS_REQUEST_ID | KEEPSERIALIZED),
        login(HONEST, flags=HAS_REQUEST_ID | 1 << 15),
        login(HONEST, serializer=MARSHAL),
        login(HONEST, serializer=SERPENT),
        login(HONEST, serializer=JSON),
        login(HONEST, serializer=0),
        login(HONEST, serializer=255),
        login(HONEST, annotations=((b"BLBI", b"x" * 4096),)),
        login(HONEST, announced_bytes=4097),
        login(HONEST, announced_bytes=2**32 - 1),
        login(HONEST, announced_annotation_bytes=2**32 - 1),
    ],
    ids=lambda forged: describe(forged),
)
def test_a_login_frame_that_is_not_ours_is_cut(victim: Watched, forged: Forged) -> None:
    with victim.unharmed(), victim.connect() as wire:
        wire.send(forged)
        assert wire.is_cut_at_once()


# S2
def test_a_compressed_login_is_never_inflated(victim: Watched) -> None:
    bomb = zlib.compress(bytes(400 * MEBIBYTE // 100), 9)
    assert len(bomb) > 4000
    small = zlib.compress(bytes(3 * MEBIBYTE), 9)
    with victim.unharmed():
        for body in (bomb, small):
            with victim.connect() as wire:
                wire.send(login(body=body, flags=HAS_REQUEST_ID | COMPRESSED))
                assert wire.is_cut_at_once()


# S3
def test_two_hundred_announcements_of_a_gigabyte_reserve_nothing(crowded: Watched) -> None:
    count, gigabyte = 200, 2**30
    before = crowded.measure()
    wires = []
    with crowded.unharmed():
        try:
            for _ in range(count):
                wires.append(crowded.connect())
                wires[-1].send(login(HONEST, announced_bytes=gigabyte))
            assert all(wire.is_cut_at_once() for wire in wires)
        finally:
            for wire in wires:
                wire.reset()
    # The stacks and heaps of threads are virtual too; what was announced would be 200 of them.
    assert crowded.measure().virtual_bytes - before.virtual_bytes < 4 * gigabyte


# S10
@pytest.mark.parametrize(
    "data",
    [
        call(1, "service", "isEnabled").encode(),
        Forged(PING, b"ping", serializer=42).encode(),
        Forged(RESULT, msgpack.packb(True)).encode(),
        Forged(CONNECTED, msgpack.packb({"handshake": 1})).encode(),
        Forged(0).encode(),
        Forged(255).encode(),
        login(HONEST, magic=0x4DC4).encode(),
        login(HONEST, version=501).encode(),
        login(HONEST, version=48).encode(),
        login(HONEST, tag=b"PYRX").encode(),
        b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: curl/8.0\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(60),
        b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n" + bytes(40),
        bytes(40),
        b"\xff" * 40,
        *(random.Random(seed).randbytes(200) for seed in range(5)),
    ],
    ids=lambda data: repr(data)[:50],
)
def test_whoever_does_not_begin_with_a_login_is_cut(victim: Watched, data: bytes) -> None:
    with victim.unharmed(), victim.connect() as wire:
        wire.send(data)
        assert wire.is_cut_at_once()
        assert not wire.heard


def test_a_peer_that_leaves_in_the_middle_of_its_login_is_forgotten(victim: Watched) -> None:
    forged = login(HONEST).encode()
    with victim.unharmed():
        for length in (1, 39, 40, len(forged) - 1):
            with victim.connect() as wire:
                wire.send(forged[:length])
            with victim.connect() as wire:
                wire.send(forged[:length])
                wire.say_no_more()
                assert wire.is_cut()


def test_what_follows_a_denied_login_is_not_read(victim: Watched) -> None:
    before = victim.status()["events"]
    with victim.unharmed(), Wire.to(victim.address) as wire:
        wire.send(login("honest." + "0" * 32), call(1, "service", "setEnabled", False))
        wire.is_cut()
    assert victim.status()["events"] == before
