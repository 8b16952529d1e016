"""What a caller names is an object of its own or of ours, never a place to be sent to.

A listener of the attacker's proves where the server does and does not go.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import msgpack
import pytest

from idl import cos, mq, system
from idl.access import Token
from idl.call import Address, within
from idl.orb import NetworkOrb
from idl.orb.network import _PeerReferences
from tests.security.attacker import Reply, Wire, call
from tests.security.impostor import Impostor, letting_in, result, saying_nothing
from tests.security.watched import HONEST, Setup, Watched

CANARY = "canary.c0ffee5ca1ab1e0ddba11ca5cadedeed"


@pytest.fixture
def listener() -> Iterator[Impostor]:
    """A place that the server must not go to."""
    with Impostor(saying_nothing) as listener:
        yield listener


@pytest.fixture(scope="module")
def entrusted(folder: Path) -> Iterator[Watched]:
    """A victim that has a token of its own, by which it proves itself to other servers."""
    setup = Setup(folder / "entrusted.log", own_token=CANARY)
    with contextlib.closing(Watched(setup)) as watched:
        yield watched


# S16
@pytest.mark.parametrize(
    ("name", "operation", "parameters"),
    [
        ("service", "setEnabled", 1),
        ("coordinator", "register_resource", 1),
        ("coordinator", "is_same_transaction", 1),
        ("synchronization", "after_completion", 1),
        ("fifo", "mqGetNext", 1),
        ("standard", "mqRead", 1),
    ],
)
def test_a_class_in_place_of_an_argument_is_refused_and_leads_nowhere(
    victim: Watched, listener: Impostor, name: str, operation: str, parameters: int
) -> None:
    with victim.unharmed(), victim.logged_in() as wire:
        for seq, value in enumerate(_classes(listener), start=1):
            reply = wire.answer(call(seq, name, operation, *[value] * parameters))
            assert reply.exception == "BAD_PARAM"
    assert listener.visits == 0


# S16
def test_a_class_inside_an_any_stays_plain_values_and_leads_nowhere(
    victim: Watched, listener: Impostor
) -> None:
    with victim.unharmed(), victim.logged_in() as wire:
        for seq, value in enumerate(_classes(listener), start=1):
            wire.answer(call(seq, "consumer", "push", value))
    pushed = [event for event in victim.status()["events"] if event.startswith("pushed")]
    assert pushed
    assert all("Proxy" not in event and "Error" not in event for event in pushed)
    assert listener.visits == 0


# S16
def test_a_class_inside_a_transaction_is_refused_and_leads_nowhere(
    victim: Watched, listener: Impostor
) -> None:
    with victim.unharmed(), victim.logged_in() as wire:
        for seq, value in enumerate(_classes(listener), start=1):
            context = msgpack.packb((1, (value, value, (1, 0, b"")), (), value))
            reply = wire.answer(call(seq, "service", "isEnabled", transaction=context))
            assert reply.exception == "MARSHAL"
    assert listener.visits == 0


def _classes(listener: Impostor) -> list[object]:
    uri, host, port = listener.reference(), listener.address.host, listener.address.port
    return [
        {
            "__class__": "Pyro5.client.Proxy",
            "state": [uri, [], [], [], "hello", "serpent"],
        },
        {"__class__": "Pyro5.core.URI", "state": ["PYRO", "object", None, host, port]},
        {"__class__": "Pyro5.server.Daemon", "state": []},
        {
            "__class__": "builtins.OSError",
            "__exception__": True,
            "args": ["x"],
            "attributes": {"_pyroTraceback": ["x"]},
        },
        {"__class__": "Pyro5.errors.NamingError", "__exception__": True, "args": [uri]},
    ]


# S17
def test_a_caller_may_name_an_object_of_its_own_host(victim: Watched) -> None:
    def vote(wire: Wire, request: Reply) -> None:
        wire.send(result(request, "COMMIT"))

    with Impostor(letting_in(vote)) as own, victim.logged_in() as wire:
        reply = wire.answer(call(1, "coordinator", "register_resource", own.reference()))
        assert not reply.exception
        assert own.visits == 1


# S17
@pytest.mark.parametrize(
    "place",
    [
        "192.0.2.7:9",
        "example.invalid:9",
        "0.0.0.0:{port}",
        "0:{port}",
        "127.1:{port}",
        "2130706433:{port}",
        "0x7f000001:{port}",
        "[::]:{port}",
        "[::ffff:127.0.0.1]:{port}",
        "[::ffff:192.0.2.7]:9",
        "127.0.0.1.example.invalid:9",
        "localhost.example.invalid:9",
        "127.0.0.1%x.example.invalid:9",
        "localhost%x.example.invalid:9",
        "LOCALHOST.:{port}",
    ],
)
def test_a_caller_may_not_name_an_object_of_a_foreign_host(
    victim: Watched, listener: Impostor, place: str
) -> None:
    reference = f"PYRO:object@{place.format(port=listener.address.port)}"
    events = victim.status()["events"]
    with victim.unharmed(), victim.logged_in() as wire:
        reply = wire.answer(call(1, "coordinator", "register_resource", reference))
        assert reply.exception == "NO_PERMISSION"
    assert victim.status()["events"] == events
    assert listener.visits == 0


# S17
@pytest.mark.parametrize(
    "reference",
    [
        "",
        "PYRO:",
        "PYRO:object",
        "PYRO:object@",
        "PYRO:object@127.0.0.1",
        "PYRO:object@127.0.0.1:",
        "PYRO:object@127.0.0.1:-1",
        "PYRO:object@127.0.0.1:99999",
        "PYRO:object@127.0.0.1:٣",
        "PYRO:object@::1:9",
        "PYRO:object@./u:socket",
        "PYRO:object@./u:/run/socket:9",
        "PYRO:object@127.0.0.1:9\r\nX: y",
        "PYRO:object@user@127.0.0.1:9",
        "PYRO:obj ect@127.0.0.1:9",
        "PYRO:\x1b[2J@127.0.0.1:9",
        "PYRONAME:object",
        "PYRONAME:object@127.0.0.1:9",
        "PYROMETA:object@127.0.0.1:9",
        "pyro:object@127.0.0.1:9",
        "http://127.0.0.1:9/",
        "file:///etc/passwd",
    ],
    ids=repr,
)
def test_what_is_no_reference_is_refused(victim: Watched, reference: str) -> None:
    with victim.logged_in() as wire:
        reply = wire.answer(call(1, "coordinator", "register_resource", reference))
        assert reply.exception == "BAD_PARAM"
        assert b"\r" not in reply.body
        assert b"\x1b" not in reply.body


# S17
@pytest.mark.parametrize(
    ("place", "is_allowed"),
    [
        ("192.0.2.7:9", True),
        ("192.0.2.7:10", True),
        ("198.51.100.1:9", True),
        ("127.0.0.1:{own}", True),
        ("127.0.0.1:9", False),
        ("localhost:9", False),
        ("[::1]:9", False),
        ("192.0.2.8:9", False),
        ("198.51.100.1:10", False),
        ("192.0.2.7.example.invalid:9", False),
    ],
)
def test_a_caller_from_elsewhere_names_its_own_host_our_objects_and_trusted_servers(
    place: str, is_allowed: bool
) -> None:
    with contextlib.closing(NetworkOrb(Address("127.0.0.1", 0))) as orb:
        assert orb.address is not None
        references = _references(orb, "192.0.2.7", Address("198.51.100.1", 9))
        reference = f"PYRO:object@{place.format(own=orb.address.port)}"
        if is_allowed:
            assert reference in repr(references.resolve(reference, cos.Resource))
        else:
            with pytest.raises(system.NO_PERMISSION):
                references.resolve(reference, cos.Resource)


# S17, S22
def test_a_server_does_not_show_its_own_token_to_a_resource_that_a_caller_names(
    entrusted: Watched,
) -> None:
    def vote(wire: Wire, request: Reply) -> None:
        wire.send(result(request, "COMMIT"))

    with Impostor(letting_in(vote)) as own, entrusted.logged_in() as wire:
        wire.answer(call(1, "coordinator", "register_resource", own.reference()))
        assert own.visits == 1
        assert CANARY.encode() not in own.heard


# S20, S22
@pytest.mark.parametrize("host", ["0.0.0.0", "localhost.", "127.1"])
def test_a_client_without_tls_does_not_send_its_token_to_another_machine(
    listener: Impostor, host: str
) -> None:
    # These lead to this machine, but cannot be told from names of others.
    reference = f"PYRO:service@{host}:{listener.address.port}"
    with (
        contextlib.closing(NetworkOrb(token=Token(CANARY), timeout_s=1.0)) as orb,
        pytest.raises(system.SystemException),
    ):
        orb.proxy(reference, mq.Mq_Service).isEnabled()
    assert CANARY.encode() not in listener.heard


# S23
def test_a_call_that_a_servant_makes_carries_nothing_of_the_call_that_it_serves(
    victim: Watched,
) -> None:
    def vote(wire: Wire, request: Reply) -> None:
        wire.send(result(request, "COMMIT"))

    name = cos.otid_t(7, 0, b"canary of a transaction")
    context = cos.PropagationContext(9, cos.TransIdentity(None, None, name), (), "canary of data")
    with Impostor(letting_in(vote)) as own, contextlib.closing(victim.honest_orb()) as orb:
        coordinator = orb.proxy(victim.reference("coordinator"), cos.Coordinator)
        resource = orb.proxy(own.reference(), cos.Resource)
        with within(context):
            coordinator.register_resource(resource)
        assert own.visits == 1
        assert b"canary" not in own.heard
        assert HONEST.encode() not in own.heard


def _references(orb: NetworkOrb, host: str, trusted: Address) -> _PeerReferences:
    """What references mean to this orb that come from the host; loopback cannot be another host."""
    assert orb.address is not None
    return _PeerReferences(
        host, orb.address, frozenset({trusted}), orb._calls, orb._calls_to_strangers
    )
