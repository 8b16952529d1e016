"""Whatever a server says, a client of ours gets a proper value or an exception, and in time."""

from __future__ import annotations

import contextlib
import time
import zlib
from collections.abc import Callable
from dataclasses import replace

import msgpack
import pytest

from idl import cos, mq, system
from idl.call import limited
from idl.orb import NetworkOrb
from idl.orb.frames import FORETOLD
from tests.security.attacker import (
    COMPRESSED,
    HAS_REQUEST_ID,
    MARSHAL,
    NOT_CONNECTED,
    SERPENT,
    Forged,
    Reply,
    Wire,
)
from tests.security.impostor import Impostor, letting_in, result, saying_nothing

MEBIBYTE = 1024 * 1024
LATE_S = 0.5


def _raw(data: bytes) -> Callable[[Reply], bytes]:
    return lambda request: data


def _changed(**changes: object) -> Callable[[Reply], bytes]:
    def make(request: Reply) -> bytes:
        return replace(result(request, True), **changes).encode()  # type: ignore[arg-type]

    return make


def _often_foretold(request: Reply) -> bytes:
    word = replace(result(request, True), flags=HAS_REQUEST_ID | FORETOLD, body=b"").encode()
    return word * 1000 + result(request, True).encode()


# S2, S3, S4, S5, S10
@pytest.mark.parametrize(
    "make",
    [
        _changed(announced_bytes=2**30),
        _changed(announced_bytes=2**32 - 1),
        _changed(announced_annotation_bytes=2**30),
        _changed(flags=HAS_REQUEST_ID | COMPRESSED, body=zlib.compress(bytes(MEBIBYTE))),
        _changed(serializer=MARSHAL),
        _changed(serializer=SERPENT),
        _changed(flags=0xFFFF),
        _changed(has_digest=False),
        _changed(body=b"\x91" * 500 + b"\x90"),
        _changed(body=b"\x91" * 100_000 + b"\x90"),
        _changed(body=b"\xdd\x00\x0f\x42\x40" * 1000),
        _changed(body=b"\xc1"),
        _changed(body=b""),
        _changed(body=msgpack.packb(())),
        _changed(body=msgpack.packb((True, True))),
        _changed(body=msgpack.packb((1,))),
        _changed(body=msgpack.packb(({"__class__": "Pyro5.client.Proxy"},))),
        _changed(flags=HAS_REQUEST_ID | 1, body=msgpack.packb(None)),
        _changed(flags=HAS_REQUEST_ID | 1, body=msgpack.packb(("IDL:Nonsense:1.0", ()))),
        _changed(flags=HAS_REQUEST_ID | 1, body=msgpack.packb(("builtins.SystemExit", (1,)))),
        _changed(
            flags=HAS_REQUEST_ID | 1,
            body=msgpack.packb({"__class__": "builtins.SystemExit", "__exception__": True}),
        ),
        _changed(flags=HAS_REQUEST_ID | FORETOLD),
        _changed(flags=HAS_REQUEST_ID | FORETOLD | 1, body=b""),
        _often_foretold,
        _raw(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n" + bytes(100)),
        _raw(bytes(1000)),
        _raw(b""),
    ],
)
def test_an_answer_that_is_none_is_an_exception(make: Callable[[Reply], bytes]) -> None:
    def converse(wire: Wire, request: Reply) -> None:
        wire.send(make(request))
        wire.say_no_more()

    begun = time.monotonic()
    with (
        Impostor(letting_in(converse)) as impostor,
        contextlib.closing(NetworkOrb(timeout_s=1.0)) as orb,
        pytest.raises(system.SystemException),
    ):
        orb.proxy(impostor.reference(), mq.Mq_Service).isEnabled()
    assert time.monotonic() - begun < 1.0 + LATE_S


# S8
@pytest.mark.parametrize("late_s", [0.0, 0.4])
def test_an_answer_that_drips_is_waited_for_no_longer_than_the_call_may_take(
    late_s: float,
) -> None:
    def converse(wire: Wire, request: Reply) -> None:
        time.sleep(late_s)
        with contextlib.suppress(AssertionError):
            wire.drip(result(request, True).encode(), 0.03, within_s=2.0)

    with (
        Impostor(letting_in(converse)) as impostor,
        contextlib.closing(NetworkOrb()) as orb,
        limited(0.5),
    ):
        begun = time.monotonic()
        with pytest.raises(system.TIMEOUT) as refused:
            orb.proxy(impostor.reference(), mq.Mq_Service).isEnabled()
        assert time.monotonic() - begun < 0.5 + 0.3
    assert refused.value.completed is system.Completion.MAYBE


# S8
def test_a_server_that_says_nothing_is_waited_for_no_longer_than_the_call_may_take() -> None:
    with (
        Impostor(saying_nothing) as impostor,
        contextlib.closing(NetworkOrb()) as orb,
        limited(0.3),
    ):
        begun = time.monotonic()
        with pytest.raises(system.TIMEOUT) as refused:
            orb.proxy(impostor.reference(), mq.Mq_Service).isEnabled()
        assert time.monotonic() - begun < 0.3 + LATE_S
    assert refused.value.completed is system.Completion.NO


# S5
def test_a_denial_of_any_form_is_an_exception() -> None:
    nested = b"\x91" * 1000 + b"\x90"
    for body in (nested, b"\xc1", b"", msgpack.packb(None), msgpack.packb({"a": "x" * 3000})):

        def deny(wire: Wire, request: Reply, body: bytes = body) -> None:
            wire.send(Forged(NOT_CONNECTED, body, request_id=bytes(16)))

        with Impostor(deny) as impostor, contextlib.closing(NetworkOrb(timeout_s=1.0)) as orb:
            with pytest.raises(system.SystemException) as told:
                orb.proxy(impostor.reference(), mq.Mq_Service).isEnabled()
            assert told.value.completed is system.Completion.NO
            assert len(str(told.value)) < 1000


# S24
def test_what_a_server_says_is_shown_without_its_control_characters() -> None:
    hostile = "\x1b[2Jall is well\r\n\0\u202e"

    def deny(wire: Wire, request: Reply) -> None:
        wire.send(Forged(NOT_CONNECTED, msgpack.packb(hostile), request_id=bytes(16)))

    def fail(wire: Wire, request: Reply) -> None:
        body = msgpack.packb((f"IDL:{hostile}:1.0", ()))
        wire.send(replace(result(request, True), body=body, flags=HAS_REQUEST_ID | 1))

    def refuse(wire: Wire, request: Reply) -> None:
        body = msgpack.packb(("IDL:omg.org/CORBA/TRANSIENT:1.0", (hostile, "NO")))
        wire.send(replace(result(request, True), body=body, flags=HAS_REQUEST_ID | 1))

    for converse in (deny, letting_in(fail), letting_in(refuse)):
        with Impostor(converse) as impostor, contextlib.closing(NetworkOrb(timeout_s=1.0)) as orb:
            with pytest.raises(system.SystemException) as told:
                orb.proxy(impostor.reference(), mq.Mq_Service).isEnabled()
            assert str(told.value).isprintable()


# S16
def test_a_reference_in_an_answer_is_not_followed_before_it_is_used() -> None:
    with Impostor(saying_nothing) as elsewhere:

        def converse(wire: Wire, request: Reply) -> None:
            wire.send(result(request, elsewhere.reference()))

        with (
            Impostor(letting_in(converse)) as impostor,
            contextlib.closing(NetworkOrb(timeout_s=1.0)) as orb,
        ):
            control = orb.proxy(impostor.reference(), cos.Control)
            terminator = control.get_terminator()
            assert orb.reference_of(terminator) == elsewhere.reference()
        assert elsewhere.visits == 0
