"""References and addresses mean what they say, and what belongs to one call stays with it."""

from __future__ import annotations

import pytest

from idl import cos
from idl.call import (
    Address,
    Call,
    Outgoing,
    Principal,
    Reference,
    current_call,
    current_outgoing,
    limited,
    repeating,
    serve_within,
    within,
)
from idl.mapping import InvalidValue

CALL = Call(bytes(16), Principal("alice"), "127.0.0.1")
CONTEXT = cos.PropagationContext(
    30, cos.TransIdentity(None, None, cos.otid_t(1, 0, b"t")), (), None
)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:7411", "127.0.0.1", 7411),
        ("[::1]:0", "::1", 0),
        ("node-1.example:65535", "node-1.example", 65535),
    ],
)
def test_an_address_reads_as_it_is_written(text: str, host: str, port: int) -> None:
    assert Address.parse(text) == Address(host, port)
    assert str(Address(host, port)) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "host",
        "host:",
        ":1",
        "::1:80",
        "host:65536",
        "host:-1",
        "host:\uff11",
        "a b:1",
        "h:1e3",
        "u/x:1",
    ],
)
def test_a_wrong_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue):
        Address.parse(text)


def test_a_reference_reads_as_it_is_written() -> None:
    text = "PYRO:Mq_Fifo/orders@[::1]:7411"
    assert str(Reference.parse(text)) == text
    assert Reference.parse(text).name == "Mq_Fifo/orders"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "orders@h:1",
        "PYRO:orders",
        "PYRO:@h:1",
        "PYRO:../x@h:1",
        "PYRO:a b@h:1",
        "PYRO:a\n@h:1",
        "PYRO:" + "x" * 201 + "@h:1",
        "PYRONAME:x@h:1",
        "PYRO:x@./u:/tmp/s",
    ],
)
def test_a_wrong_reference_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue):
        Reference.parse(text)


def test_outside_a_call_there_is_no_call() -> None:
    with pytest.raises(LookupError, match="no call is being served here"):
        current_call()


def test_a_served_call_is_current_and_inherits_nothing() -> None:
    seen: list[object] = []

    def serve(argument: str) -> str:
        seen.extend((current_call(), current_outgoing()))
        return argument * 2

    with within(CONTEXT), limited(1.0):
        assert serve_within(CALL, serve, ["ab"]) == "abab"
        assert current_outgoing().timeout_s == 1.0
    assert seen == [CALL, Outgoing()]
    with pytest.raises(LookupError):
        current_call()


def test_what_calls_carry_can_be_said_one_thing_at_a_time() -> None:
    with within(CONTEXT), limited(2.5), repeating(b"k" * 16):
        assert current_outgoing() == Outgoing(CONTEXT, 2.5, b"k" * 16)
        with within(None):
            assert current_outgoing().transaction is None
    assert current_outgoing() == Outgoing()


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan")])
def test_a_call_must_have_a_finite_time(seconds: float) -> None:
    with pytest.raises(InvalidValue), limited(seconds):
        pass


def test_an_idempotency_key_has_its_length() -> None:
    with pytest.raises(InvalidValue, match="16 bytes"), repeating(b"short"):
        pass
