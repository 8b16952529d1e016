"""Whoever was let in still sends one honest frame after the other, or is cut."""

from __future__ import annotations

import contextlib
import marshal
import random
import threading
import time
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgpack
import pytest

from idl import mq, system
from idl.call import repeating
from idl.orb import Limits
from tests.security.attacker import (
    BATCH,
    COMPRESSED,
    CONNECTED,
    EXCEPTION,
    HAS_REQUEST_ID,
    INVOKE,
    ITEMSTREAM,
    JSON,
    KEEPSERIALIZED,
    MARSHAL,
    ONEWAY,
    PING,
    RESULT,
    SERPENT,
    Forged,
    Reply,
    call,
    describe,
    login,
)
from tests.security.victim import HEADER
from tests.security.watched import HONEST, MEBIBYTE, SERVED_WITHIN_S, Setup, Watched, wait_until

SWITCH_OFF = call(1, "service", "setEnabled", False)
HEADER_PLAIN = (1, 2, (3, 4), "victim")


# S2, S3, S4, S5, S9, S10
@pytest.mark.parametrize(
    "forged",
    [
        *(
            replace(SWITCH_OFF, flags=HAS_REQUEST_ID | flag)
            for flag in (
                EXCEPTION,
                COMPRESSED,
                ONEWAY,
                BATCH,
                ITEMSTREAM,
                KEEPSERIALIZED,
                ONEWAY | BATCH,
                *(1 << bit for bit in range(7, 16)),
            )
        ),
        *(
            replace(SWITCH_OFF, serializer=serializer)
            for serializer in (0, SERPENT, MARSHAL, JSON, 5, 42, 255)
        ),
        replace(
            SWITCH_OFF,
            flags=HAS_REQUEST_ID | KEEPSERIALIZED,
            annotations=((b"BLBI", marshal.dumps(("service", "setEnabled"))),),
        ),
        login(HONEST, seq=1),
        Forged(PING, b"ping", 1, serializer=42),
        Forged(PING, b"ping", 1),
        Forged(RESULT, SWITCH_OFF.body, 1),
        Forged(CONNECTED, SWITCH_OFF.body, 1),
        replace(SWITCH_OFF, magic=0),
        replace(SWITCH_OFF, version=503),
        replace(SWITCH_OFF, tag=b"pyro"),
        replace(SWITCH_OFF, seq=0),
        replace(SWITCH_OFF, seq=2),
        replace(SWITCH_OFF, seq=0xFFFF),
        replace(SWITCH_OFF, announced_bytes=MEBIBYTE),
        replace(SWITCH_OFF, announced_bytes=2**30),
        replace(SWITCH_OFF, announced_bytes=2**32 - 1),
        replace(SWITCH_OFF, announced_annotation_bytes=4097),
        replace(SWITCH_OFF, announced_annotation_bytes=2**32 - 1),
        replace(SWITCH_OFF, annotations=((b"XXXX", bytes(4096)),)),
    ],
    ids=describe,
)
def test_a_frame_that_no_client_of_ours_sends_is_cut_and_not_carried_out(
    victim: Watched, forged: Forged
) -> None:
    before = victim.measure()
    events = victim.status()["events"]
    with victim.unharmed(), victim.logged_in() as wire:
        wire.send(forged)
        assert wire.is_cut_at_once()
        assert wait_until(lambda: victim.measure().threads <= before.threads, SERVED_WITHIN_S)
        assert victim.status()["events"] == events


# S10
def test_random_bytes_after_the_login_are_cut(victim: Watched) -> None:
    chance = random.Random(20)
    with victim.unharmed():
        for _ in range(10):
            with victim.logged_in() as wire:
                wire.send(chance.randbytes(500))
                assert wire.is_cut_at_once()


# S2
def test_a_compressed_request_is_never_inflated(victim: Watched) -> None:
    bomb = zlib.compress(bytes(100 * MEBIBYTE), 1)
    assert len(bomb) < victim.limits.message_bytes_max
    with victim.unharmed(), victim.logged_in() as wire:
        wire.send(Forged(INVOKE, bomb, 1, HAS_REQUEST_ID | COMPRESSED))
        assert wire.is_cut_at_once()


def test_a_request_without_its_digest_or_with_more_beside_it_is_not_carried_out(
    victim: Watched,
) -> None:
    events = victim.status()["events"]
    for forged in (
        replace(SWITCH_OFF, has_digest=False),
        replace(SWITCH_OFF, has_digest=False, annotations=((b"OMQD", bytes(4)),)),
        replace(SWITCH_OFF, annotations=((b"\xff\xfe\xfd\xfc", b""),)),
        replace(SWITCH_OFF, annotations=((b"BLBI", b"blob"),)),
        replace(SWITCH_OFF, annotations=((b"OMQT", b""),) * 2),
    ):
        with victim.unharmed(), victim.logged_in() as wire:
            assert wire.answer(forged).exception == "MARSHAL"
            assert wire.is_cut()
    assert victim.status()["events"] == events


# S20
def test_a_frame_that_is_replayed_is_carried_out_once(victim: Watched) -> None:
    put = call(1, "fifo", "mqPut", None, HEADER_PLAIN, (), b"once")
    with victim.unharmed(), victim.logged_in() as wire:
        assert not wire.answer(put).exception
        wire.send(put)
        assert wire.is_cut_at_once()
    with contextlib.closing(victim.honest_orb()) as orb:
        fifo = orb.proxy(victim.reference("fifo"), mq.Mq_Fifo)
        assert fifo.mqGetNext(None)[2] == b"once"
        with pytest.raises(mq.QueueEmpty):
            fifo.mqGetNext(None)


# S20
def test_a_call_that_is_repeated_shows_the_servant_the_same_request_id(victim: Watched) -> None:
    request_id = bytes(range(16, 32))
    with contextlib.closing(victim.honest_orb()) as orb:
        witness = orb.proxy(victim.reference("witness"), mq.Mq_Fifo)
        for _ in range(2):
            with repeating(request_id):
                witness.mqPut(None, HEADER, (), b"again")
        seen = [witness.mqGetNext(None)[2] for _ in range(2)]
    assert repr(request_id).encode() in seen[0]
    assert seen[0] == seen[1]


# S5
@pytest.mark.parametrize(
    "arguments",
    [
        *(b"\x91" * depth + b"\x90" for depth in (20, 500, 900, 995, 1000, 1015, 1100, 100_000)),
        *(b"\x81\xa1k" * depth + b"\x80" for depth in (20, 500, 1000, 1100, 100_000)),
        b"\x91\xdd\xff\xff\xff\xff",
        b"\xdd\xff\xff\xff\xff" + b"\x00" * 1000,
        b"\x91\xdf\xff\xff\xff\xff",
        b"\x91\xc6\xff\xff\xff\xff",
        b"\x91\xd6\xff\x00\x00\x00\x01",
        b"\x91\xd4\x05\x00",
        b"\x91\xc1",
        b"\x91\x81\x01\x02",
        b"\x91\xa4\xff\xff\xff\xff",
        b"\xdd\x00\x0f\x42\x40" * 1000,
    ],
    ids=lambda arguments: f"{arguments[:6].hex()} of {len(arguments)}",
)
@pytest.mark.parametrize(
    ("name", "operation"),
    [("service", "setEnabled"), ("synchronization", "after_completion"), ("consumer", "push")],
)
def test_arguments_that_cannot_be_read_are_an_error_and_no_more(
    victim: Watched, name: str, operation: str, arguments: bytes
) -> None:
    body = b"\x94" + msgpack.packb(name) + msgpack.packb(operation) + arguments + b"\x80"
    with victim.unharmed(), victim.logged_in() as wire:
        reply = wire.answer(Forged(INVOKE, body, 1))
        assert reply.exception in ("MARSHAL", "BAD_PARAM")
        # The connection goes on: the frame itself was sound.
        assert not wire.answer(call(2, "service", "isEnabled")).exception


@pytest.fixture(scope="module")
def spacious(folder: Path) -> Iterator[Watched]:
    """A victim with the limits that users have."""
    setup = Setup(folder / "spacious.log", limits=Limits(drain_s=0.2))
    with contextlib.closing(Watched(setup)) as watched:
        yield watched


# S5
@pytest.mark.parametrize(
    "element",
    [b"\x80", b"\x91\x00", b"\x90", b"\x00", b"\xa2ab", b"\x92\x80\x80"],
    ids=lambda element: element.hex(),
)
@pytest.mark.parametrize("per_array", [1, 1000])
def test_millions_of_small_values_in_one_frame_hold_nobody_up(
    spacious: Watched, element: bytes, per_array: int
) -> None:
    one = (b"" if per_array == 1 else b"\xdc" + per_array.to_bytes(2, "big")) + element * per_array
    count = 24 * MEBIBYTE // len(one)
    arguments = b"\xdd" + count.to_bytes(4, "big") + one * count
    body = b"\x94\xa7service\xaasetEnabled" + arguments + b"\x80"
    _answer_without_holding_up(spacious, body, growth_max=8.0)


# S5
@pytest.mark.parametrize("character", [b"\0", "\x01"], ids=["bytes", "text"])
def test_a_large_value_of_the_wrong_type_is_described_without_being_spelt_out(
    spacious: Watched, character: bytes | str
) -> None:
    body = call(1, "service", "setEnabled", character * 60 * MEBIBYTE).body
    # Its pieces, the whole of them, and the value; not one more that is written with escapes.
    _answer_without_holding_up(spacious, body, growth_max=4.0)


def _answer_without_holding_up(watched: Watched, body: bytes, growth_max: float) -> None:
    """The request is refused, others are served meanwhile, and memory is not multiplied."""
    before = watched.measure_afresh()
    slowest = 0.0
    answers: list[Reply | None] = []
    with watched.logged_in() as wire, contextlib.closing(watched.honest_orb()) as orb:
        service = orb.proxy(watched.reference("service"), mq.Mq_Service, timeout_s=30.0)

        def attack() -> None:
            wire.send(Forged(INVOKE, body, 1))
            answers.append(wire.reply(30.0))

        attacking = threading.Thread(target=attack)
        attacking.start()
        while attacking.is_alive():
            begun = time.monotonic()
            assert service.isEnabled() is True
            slowest = max(slowest, time.monotonic() - begun)
        attacking.join()
    [answer] = answers
    assert answer is not None
    assert answer.exception in ("BAD_PARAM", "IMP_LIMIT", "MARSHAL")
    assert len(answer.body) < 1000
    assert slowest < SERVED_WITHIN_S
    assert watched.measure().peak_bytes - before.peak_bytes < growth_max * len(body)
    watched.serve_newcomer()


# S26
def test_a_frame_of_exactly_the_limit_is_read_and_one_byte_more_is_cut(victim: Watched) -> None:
    digest_bytes = 12
    fits = _padded(victim.limits.message_bytes_max - digest_bytes)
    with victim.unharmed(), victim.logged_in() as wire:
        assert wire.answer(fits).exception == "NO_IMPLEMENT"
        wire.send(replace(_padded(len(fits.body) + 1), seq=2))
        assert wire.is_cut_at_once()


# S26
def test_a_login_of_exactly_the_limit_is_read_and_one_byte_more_is_cut(victim: Watched) -> None:
    digest_bytes, limit = 12, victim.limits.handshake_bytes_max
    for more, is_read in ((0, True), (1, False)):
        said = {"handshake": {"oncemq": 1, "token": HONEST}, "object": "x"}
        missing = limit - digest_bytes + more - len(msgpack.packb(said)) + 1
        said["object"] = "x" * (missing - 2)
        forged = login(body=msgpack.packb(said))
        assert len(forged.body) == limit - digest_bytes + more
        with victim.unharmed(), victim.connect() as wire:
            wire.send(forged)
            reply = wire.reply()
            assert (reply is not None and reply.kind == CONNECTED) is is_read


# S26
def test_a_client_sends_exactly_the_limit_and_refuses_one_byte_more(victim: Watched) -> None:
    allowed = victim.limits.message_bytes_max - victim.limits.annotation_bytes_max
    largest = allowed - _overhead()
    with victim.unharmed(), contextlib.closing(victim.honest_orb(limits=victim.limits)) as orb:
        fifo = orb.proxy(victim.reference("fifo"), mq.Mq_Fifo)
        fifo.mqPut(None, HEADER, (), bytes(largest))
        assert len(fifo.mqGetNext(None)[2]) == largest
        with pytest.raises(system.IMP_LIMIT) as refused:
            fifo.mqPut(None, HEADER, (), bytes(largest + 1))
        assert refused.value.completed is system.Completion.NO


# S26
def test_an_answer_of_exactly_the_limit_arrives_and_one_byte_more_is_told(victim: Watched) -> None:
    allowed = victim.limits.message_bytes_max - victim.limits.annotation_bytes_max
    overhead = len(msgpack.packb((True, HEADER_PLAIN, (), b"x" * 100_000))) - 100_000
    with victim.unharmed(), contextlib.closing(victim.honest_orb(limits=victim.limits)) as orb:
        standard = orb.proxy(victim.reference("standard"), mq.Mq_Standard)
        assert len(standard.mqRead(str(allowed - overhead))[3]) == allowed - overhead
        with pytest.raises(system.IMP_LIMIT) as refused:
            standard.mqRead(str(allowed - overhead + 1))
        assert refused.value.completed is system.Completion.YES
        assert standard.mqRead("1")[3] == b"x"


def _overhead() -> int:
    return len(call(1, "fifo", "mqPut", None, HEADER_PLAIN, (), bytes(100_000)).body) - 100_000


def _padded(body_bytes: int) -> Forged:
    """A request that can be read, is refused by the servant, and has exactly so many bytes."""
    data = bytes(body_bytes - len("standard") + len("fifo") - _overhead())
    return call(1, "standard", "mqPut", None, HEADER_PLAIN, (), data)
