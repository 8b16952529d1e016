"""A frame that changed on the way, or came twice or late, never passes for what was sent.

Every byte of a request and of an answer is flipped in turn, and each is cut off at every length.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import msgpack
import pytest

from idl import mq, system
from idl.call import limited, repeating
from idl.orb import NetworkOrb
from tests.security.attacker import (
    CONNECT,
    CONNECTED,
    EXCEPTION,
    RESULT,
    Forged,
    Reply,
    Wire,
    call,
)
from tests.security.authority import Authority, careless_server
from tests.security.impostor import Impostor, let_in, letting_in, result
from tests.security.watched import Watched

TRANSACTION = msgpack.packb((9, (None, None, (7, 0, b"branch")), (), "data"))
PUT = call(
    1,
    "witness",
    "mqPut",
    None,
    (1, 2, (3, 4), "sender"),
    (("key", "value"),),
    b"the payload",
    transaction=TRANSACTION,
)
LOST = (system.COMM_FAILURE, system.Completion.MAYBE)
GOT = ((1, 2, (3, 4), "sender"), (("key", "value"),), b"the payload")


# --- Requests ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
def test_a_request_with_a_flipped_byte_is_never_carried_out_as_something_else(
    crowded: Watched, mask: int
) -> None:
    frame = PUT.encode()
    with crowded.unharmed():
        assert _witnessed(crowded) == []
        assert _send_and_hear(crowded, frame) == (None,)
        [expected] = _witnessed(crowded)
        for position in range(len(frame)):
            flipped = bytearray(frame)
            flipped[position] ^= mask
            _send_and_hear(crowded, bytes(flipped))
        assert all(seen == expected for seen in _witnessed(crowded))


def test_a_request_that_is_cut_off_is_never_carried_out(crowded: Watched) -> None:
    frame = PUT.encode()
    with crowded.unharmed():
        for length in range(len(frame)):
            assert _send_and_hear(crowded, frame[:length]) == ()
        assert _witnessed(crowded) == []


def test_bytes_that_moved_from_the_transaction_into_the_body_are_noticed(crowded: Watched) -> None:
    sound = PUT.encode()
    at = sound.index(TRANSACTION)
    for moved in range(1, 5):
        # The same bytes in the same order, announced with another border between the two.
        beside = replace(
            PUT,
            transaction=TRANSACTION[:-moved],
            body=TRANSACTION[-moved:] + PUT.body,
        )
        forged = bytearray(beside.encode())
        assert forged[at:] == sound[at:]
        forged[40:52] = sound[40:52]
        _send_and_hear(crowded, bytes(forged))
    assert _witnessed(crowded) == []


def _send_and_hear(watched: Watched, data: bytes) -> tuple[object, ...]:
    """What the victim answers to bytes that end there: nothing, a result, or an exception."""
    with watched.logged_in() as wire:
        wire.send(data)
        wire.say_no_more()
        reply = wire.reply()
        if reply is None:
            return ()
        return (reply.exception or None,)


def _witnessed(watched: Watched) -> list[bytes]:
    """What has reached the servant since it was last asked."""
    seen = []
    with contextlib.closing(watched.honest_orb()) as orb:
        witness = orb.proxy(watched.reference("witness"), mq.Mq_Fifo)
        with contextlib.suppress(mq.QueueEmpty):
            while True:
                seen.append(witness.mqGetNext(None)[2])
    return seen


# --- Answers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
def test_an_answer_with_a_flipped_byte_is_never_taken_for_another_value(mask: int) -> None:
    def flip(frame: bytes, position: int) -> bytes:
        flipped = bytearray(frame)
        flipped[position] ^= mask
        return bytes(flipped)

    assert set(_get_through(flip)) == {LOST}


def test_an_answer_that_is_cut_off_is_an_error() -> None:
    assert set(_get_through(lambda frame, position: frame[:position])) == {LOST}


@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
def test_a_login_that_was_answered_with_a_flipped_byte_is_no_login(mask: int) -> None:
    answered = Forged(CONNECTED, msgpack.packb({"handshake": 1}), request_id=bytes(16)).encode()
    position = [0]

    def converse(wire: Wire, request: Reply) -> None:
        flipped = bytearray(answered)
        flipped[position[0]] ^= mask
        wire.send(bytes(flipped))
        wire.say_no_more()

    with Impostor(converse) as impostor, contextlib.closing(NetworkOrb(timeout_s=1.0)) as orb:
        service = orb.proxy(impostor.reference(), mq.Mq_Service)
        for position[0] in range(len(answered)):
            with pytest.raises(system.SystemException) as refused:
                service.isEnabled()
            assert refused.value.completed is system.Completion.NO
        assert impostor.visits >= len(answered)


def _get_through(spoil: Callable[[bytes, int], bytes]) -> list[object]:
    """What becomes of a get whose answer is spoilt, at each position in turn."""
    position = [0]
    length = [1]

    def converse(wire: Wire, request: Reply) -> None:
        frame = replace(result(request, None), body=msgpack.packb(GOT)).encode()
        length[0] = len(frame)
        wire.send(spoil(frame, position[0]))
        wire.say_no_more()

    outcomes: list[object] = []
    with (
        Impostor(letting_in(converse)) as impostor,
        contextlib.closing(NetworkOrb(timeout_s=2.0)) as orb,
    ):
        fifo = orb.proxy(impostor.reference(), mq.Mq_Fifo)
        while position[0] < length[0]:
            try:
                outcomes.append(fifo.mqGetNext(None))
            except system.SystemException as told:
                outcomes.append((type(told), told.completed))
            position[0] += 1
    assert len(outcomes) > 80
    return outcomes


# --- Answers to other calls ----------------------------------------------------------------------


def _own_id(request: Reply) -> Forged:
    return result(request, request.request_id.hex())


def _twice(wire: Wire, request: Reply) -> None:
    wire.send(_own_id(request), _own_id(request))


def _then_one_of_the_next_seq(wire: Wire, request: Reply) -> None:
    wire.send(_own_id(request), replace(_own_id(request), seq=request.seq + 1))


def _then_an_exception(wire: Wire, request: Reply) -> None:
    body = msgpack.packb(("IDL:omg.org/CORBA/TRANSIENT:1.0", ("stale", "NO")))
    wire.send(_own_id(request), replace(_own_id(request), body=body, flags=EXCEPTION | 64))


@pytest.mark.parametrize("answer", [_twice, _then_one_of_the_next_seq, _then_an_exception])
@pytest.mark.parametrize("has_tls", [False, True], ids=["clear", "tls"])
def test_an_answer_too_many_is_never_taken_for_that_of_the_next_call(
    authority: Authority, answer: Callable[[Wire, Reply], None], has_tls: bool
) -> None:
    context = careless_server(authority.server()) if has_tls else None
    tls = authority.tls() if has_tls else None
    with (
        Impostor(letting_in(answer), context) as impostor,
        contextlib.closing(NetworkOrb(tls=tls, timeout_s=2.0)) as orb,
    ):
        service = orb.proxy(impostor.reference(), mq.Mq_Service)
        for _ in range(10):
            request_id = secrets.token_bytes(16)
            with repeating(request_id), contextlib.suppress(system.COMM_FAILURE):
                assert service.getStatus() == request_id.hex()


@pytest.mark.parametrize(
    "mistake",
    [
        {"seq": 0},
        {"seq": 2},
        {"seq": 0xFFFF},
        {"request_id": bytes(16)},
        {"request_id": b"\xff" * 16},
        {"kind": 4},
        {"kind": 2},
    ],
    ids=repr,
)
def test_an_answer_to_another_call_is_an_error(mistake: dict[str, object]) -> None:
    def converse(wire: Wire, request: Reply) -> None:
        wire.send(replace(_own_id(request), **mistake))  # type: ignore[arg-type]

    with (
        Impostor(letting_in(converse)) as impostor,
        contextlib.closing(NetworkOrb(timeout_s=2.0)) as orb,
        pytest.raises(system.COMM_FAILURE) as refused,
    ):
        orb.proxy(impostor.reference(), mq.Mq_Service).getStatus()
    assert refused.value.completed is system.Completion.MAYBE


def test_an_answer_that_nobody_asked_for_is_never_taken_for_one() -> None:
    def converse(wire: Wire, request: Reply) -> None:
        if request.kind == CONNECT:
            let_in(wire, request)
            wire.send(Forged(RESULT, msgpack.packb(("unasked",)), 1, request_id=bytes(16)))
        else:
            wire.send(_own_id(request))

    with (
        Impostor(converse) as impostor,
        contextlib.closing(NetworkOrb(timeout_s=2.0)) as orb,
    ):
        service = orb.proxy(impostor.reference(), mq.Mq_Service)
        request_id = secrets.token_bytes(16)
        with repeating(request_id), contextlib.suppress(system.COMM_FAILURE):
            assert service.getStatus() == request_id.hex()


def test_an_answer_that_comes_too_late_is_never_taken_for_that_of_the_next_call() -> None:
    late = [True]

    def converse(wire: Wire, request: Reply) -> None:
        if late[0]:
            late[0] = False
            time.sleep(0.3)
        wire.send(_own_id(request))

    with (
        Impostor(letting_in(converse)) as impostor,
        contextlib.closing(NetworkOrb(timeout_s=2.0)) as orb,
    ):
        service = orb.proxy(impostor.reference(), mq.Mq_Service)
        with limited(0.1), pytest.raises(system.TIMEOUT):
            service.getStatus()
        for _ in range(5):
            request_id = secrets.token_bytes(16)
            with repeating(request_id):
                assert service.getStatus() == request_id.hex()
            time.sleep(0.1)


def test_threads_that_share_an_orb_get_their_own_answers(victim: Watched) -> None:
    wrong: list[object] = []

    def read(size: int, orb: NetworkOrb) -> None:
        standard = orb.proxy(victim.reference("standard"), mq.Mq_Standard)
        for more in range(30):
            got = len(standard.mqRead(str(size + more))[3])
            if got != size + more:
                wrong.append((size, more, got))

    with victim.unharmed(), contextlib.closing(victim.honest_orb()) as orb:
        threads = [
            threading.Thread(target=read, args=(1000 * number, orb)) for number in range(1, 9)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []
