"""Only the operations of a published interface can be called, and only with what it declares."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgpack
import pytest

from idl import cos, mq
from idl.mapping import operations_of
from tests.security.attacker import INVOKE, Forged, call
from tests.security.victim import SERVER_SECRET
from tests.security.watched import Watched

PUBLISHED: dict[str, type] = {
    "service": mq.Mq_Service,
    "fifo": mq.Mq_Fifo,
    "standard": mq.Mq_Standard,
    "coordinator": cos.Coordinator,
    "consumer": cos.PushConsumer,
    "synchronization": cos.Synchronization,
}


# S11
@pytest.mark.parametrize("name", ["Pyro.Daemon", "Pyro.NameServer", "Pyro.Flame", "", "__main__"])
@pytest.mark.parametrize(
    ("operation", "arguments"),
    [
        ("registered", ()),
        ("info", ()),
        ("ping", ()),
        ("get_metadata", ("service",)),
        ("get_metadata", ("service", True)),
        ("get_next_stream_item", ("00000000-0000-0000-0000-000000000000",)),
        ("close_stream", ("00000000-0000-0000-0000-000000000000",)),
        ("isEnabled", ()),
    ],
)
def test_there_is_no_object_that_tells_of_the_others(
    victim: Watched, name: str, operation: str, arguments: tuple[object, ...]
) -> None:
    with victim.logged_in() as wire:
        assert wire.answer(call(1, name, operation, *arguments)).exception == "OBJECT_NOT_EXIST"


# S11
def test_an_object_that_was_never_published_is_like_one_that_nobody_knows(victim: Watched) -> None:
    with victim.logged_in() as wire:
        one = wire.answer(call(1, "object/0000", "prepare")).plain
        other = wire.answer(call(2, "object/0001", "prepare")).plain
    assert str(one).replace("0000", "0001") == str(other)


# S12
@pytest.mark.parametrize(
    "operation",
    [
        "",
        "_private",
        "__init__",
        "__class__",
        "__dict__",
        "__doc__",
        "__getattr__",
        "__getattribute__",
        "__setattr__",
        "__delattr__",
        "__reduce__",
        "__call__",
        "__dir__",
        "is_on",
        "events",
        "remember",
        "getStatus.__func__",
        "getStatus.__globals__",
        "events.append",
        "isEnabled ",
        "isEnabled\0",
        "ISENABLED",
        "\uff49sEnabled",
        "mqPut",
    ],
)
@pytest.mark.parametrize("arguments", [(), ("is_on",), ("is_on", False)])
def test_a_member_that_is_no_operation_cannot_be_reached(
    victim: Watched, operation: str, arguments: tuple[object, ...]
) -> None:
    events = victim.status()["events"]
    with victim.logged_in() as wire:
        assert wire.answer(call(1, "service", operation, *arguments)).exception == "BAD_OPERATION"
    assert victim.status()["events"] == events


# S12
@pytest.mark.parametrize(
    "request_",
    [
        ("service", "setEnabled", (), {"b": False}),
        ("service", "setEnabled", (False,), {"self": 1}),
        ("service", "setEnabled", (False,)),
        ("service", "setEnabled", (False,), {}, 1),
        ("service", "setEnabled", (False,), None),
        ("service", "setEnabled", {"b": False}, {}),
        ("service", "setEnabled", "b", {}),
        ("service", ["setEnabled"], (False,), {}),
        (b"service", "setEnabled", (False,), {}),
        ("service", b"setEnabled", (False,), {}),
        (1, 2, 3, 4),
        {"service": "setEnabled"},
        None,
        [("service", "setEnabled", (False,), {})] * 3,
    ],
    ids=repr,
)
def test_a_request_that_is_no_call_is_not_carried_out(victim: Watched, request_: object) -> None:
    events = victim.status()["events"]
    with victim.logged_in() as wire:
        reply = wire.answer(Forged(INVOKE, msgpack.packb(request_), 1))
        assert reply.exception == "MARSHAL"
    assert victim.status()["events"] == events


@pytest.mark.parametrize(
    "arguments", [(), (1,), (None,), ("false",), (b"\0",), (0.0,), ((),), (False, False)], ids=repr
)
def test_an_argument_of_another_type_does_not_reach_the_servant(
    victim: Watched, arguments: tuple[object, ...]
) -> None:
    events = victim.status()["events"]
    with victim.logged_in() as wire:
        assert wire.answer(call(1, "service", "setEnabled", *arguments)).exception == "BAD_PARAM"
    assert victim.status()["events"] == events


# S5, S21
def test_whatever_the_arguments_are_the_caller_gets_an_answer_that_tells_nothing(
    victim: Watched,
) -> None:
    chance = random.Random(31)
    operations = [(name, op) for name, of in PUBLISHED.items() for op in operations_of(of).values()]
    with victim.unharmed(), victim.logged_in() as wire:
        for seq in range(1, 601):
            name, operation = chance.choice(operations)
            count = len(operation.parameters) if chance.random() < 0.9 else chance.randrange(6)
            arguments = [_any_value(chance, 3) for _ in range(count)]
            transaction = b""
            if chance.random() < 0.2:
                transaction = msgpack.packb(_any_value(chance, 3))
            forged = call(seq, name, operation.name, *arguments, transaction=transaction)
            assert_tells_nothing(wire.answer(forged).raw)


# S21
@pytest.mark.parametrize(
    "forged",
    [
        call(1, "service", "mqShutdown"),
        call(1, "fifo", "mqStartNotify", "channel", 1),
        call(1, "fifo", "mqSetPriorization", True),
        call(1, "standard", "mqRead", "not a number"),
        call(1, "standard", "mqRead", "99999999999999"),
        call(1, "coordinator", "get_txcontext"),
        call(1, "coordinator", "register_resource", None),
        call(1, "coordinator", "register_resource", "PYRO:x@127.0.0.1:1"),
        call(1, "nothing", "isEnabled"),
        call(1, "service", "nothing"),
        call(1, "service", "setEnabled", "x" * 100_000),
        call(1, "service", "isEnabled", transaction=b"\xc1"),
        call(1, "service", "isEnabled", transaction=msgpack.packb((1, 2, 3, 4))),
        replace(call(1, "service", "isEnabled"), body=b"\xc1"),
        replace(call(1, "service", "isEnabled"), has_digest=False),
    ],
    ids=lambda forged: repr(forged.body[:40]),
)
def test_an_error_tells_nothing_about_the_server(victim: Watched, forged: Forged) -> None:
    with victim.unharmed(), victim.logged_in() as wire:
        reply = wire.answer(forged)
        assert reply.exception
        assert len(reply.raw) < 1000
        assert_tells_nothing(reply.raw)


# S21
def test_the_details_of_a_failure_are_in_the_log_under_the_id_that_the_caller_was_told(
    victim: Watched,
) -> None:
    request_id = random.Random(7).randbytes(16)
    with victim.logged_in() as wire:
        reply = wire.answer(call(1, "service", "mqShutdown", request_id=request_id))
    assert reply.exception == "UNKNOWN"
    assert request_id.hex() in reply.plain[1][0]
    _, found, after = victim.log_text().partition(request_id.hex())
    assert found
    assert SERVER_SECRET in after


def assert_tells_nothing(raw: bytes) -> None:
    """No traceback, path, library or text of the server's own is in the bytes."""
    text = raw.decode("latin-1")
    for word in (
        "Traceback",
        "File ",
        ".py",
        "/srv",
        "/usr",
        "/lib",
        "SELECT",
        "canary",
        "KeyError",
        "ZeroDivision",
        "ValueError",
        "object at 0x",
        "Python",
        "python",
        "msgpack",
        "Pyro5",
        "5.17",
        "site-packages",
    ):
        assert word not in text, f"{word!r} is told to the caller"


def _any_value(chance: random.Random, depth: int) -> Any:
    makers: list[Callable[[], Any]] = [
        lambda: None,
        lambda: chance.random() < 0.5,
        lambda: chance.choice([0, -1, 1, 2**16, 2**32, 2**63, 2**64 - 1, -(2**63)]),
        lambda: chance.choice([0.0, float("inf"), float("nan"), -1e308]),
        lambda: chance.choice(["", "ACTIVE", "a\0b", "\u202e", "x" * 300, "PYRO:x@127.0.0.1:1"]),
        lambda: chance.choice(["PYRO:", "PYRO:@", "PYRO:x@:", "PYRO:x@[::1]:1", "PYRO:x@y:99999"]),
        lambda: chance.randbytes(chance.randrange(20)),
        lambda: msgpack.Timestamp(1, 2),
        lambda: msgpack.ExtType(chance.randrange(127), b"x"),
    ]
    if depth:
        makers += [
            lambda: [_any_value(chance, depth - 1) for _ in range(chance.randrange(5))],
            lambda: [1, 2, [3, 4], "sender"],
            lambda: {
                chance.choice(["a", "__class__"]): _any_value(chance, depth - 1)
                for _ in range(chance.randrange(3))
            },
        ] * 2
    return chance.choice(makers)()
