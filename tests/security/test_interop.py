"""Our frames are Pyro5's frames, and yet a stock Pyro5 neither gets in here nor passes for us."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import msgpack
import Pyro5.client
import Pyro5.errors
import Pyro5.server
import pytest
from Pyro5 import protocol, socketutil

from idl import mq, system
from idl.access import Token
from idl.orb import NetworkOrb
from tests.security.attacker import CONNECT, INVOKE, MSGPACK, Reply, Wire, call, login
from tests.security.impostor import Impostor, letting_in, result
from tests.security.watched import HONEST, Watched


def test_a_stock_proxy_is_told_that_it_is_not_allowed(victim: Watched) -> None:
    with victim.unharmed(), Pyro5.client.Proxy(victim.reference("service")) as proxy:
        proxy._pyroSerializer = "msgpack"
        proxy._pyroTimeout = 2.0
        with pytest.raises(Pyro5.errors.CommunicationError, match="not allowed"):
            proxy._pyroBind()


def test_a_stock_proxy_that_brings_a_token_is_not_allowed(victim: Watched) -> None:
    with victim.unharmed(), Pyro5.client.Proxy(victim.reference("service")) as proxy:
        proxy._pyroSerializer = "msgpack"
        proxy._pyroTimeout = 2.0
        proxy._pyroHandshake = {"oncemq": 1, "token": HONEST}
        with pytest.raises(Pyro5.errors.CommunicationError, match="not allowed"):
            proxy._pyroBind()


# S4, S5
@pytest.mark.parametrize("serializer", ["serpent", "json", "marshal"])
def test_a_stock_proxy_with_another_serializer_is_cut(victim: Watched, serializer: str) -> None:
    with victim.unharmed(), Pyro5.client.Proxy(victim.reference("service")) as proxy:
        proxy._pyroSerializer = serializer
        proxy._pyroTimeout = 2.0
        with pytest.raises(Pyro5.errors.CommunicationError):
            proxy._pyroBind()


def test_pyro_reads_what_our_server_sends(victim: Watched) -> None:
    with victim.connect() as wire:
        wire.send(login(HONEST), call(1, "service", "isEnabled"), call(2, "service", "nothing"))
        connection = socketutil.SocketConnection(wire.sock, keep_open=True)
        connected = protocol.recv_stub(connection, [protocol.MSG_CONNECTOK])
        answer = protocol.recv_stub(connection, [protocol.MSG_RESULT])
        refusal = protocol.recv_stub(connection, [protocol.MSG_RESULT])
    assert msgpack.unpackb(connected.data)["meta"] == {"methods": [], "oneway": [], "attrs": []}
    assert (msgpack.unpackb(answer.data), answer.seq, answer.flags & 1) == ([True], 1, 0)
    assert (refusal.seq, refusal.flags & protocol.FLAGS_EXCEPTION) == (2, 1)
    assert {connected.serializer_id, answer.serializer_id, refusal.serializer_id} == {MSGPACK}


def test_pyro_reads_what_our_client_sends() -> None:
    said: list[Reply] = []

    def converse(wire: Wire, request: Reply) -> None:
        said.append(request)
        wire.send(result(request, True))

    with Impostor(letting_in(converse)) as impostor:
        with contextlib.closing(NetworkOrb(token=Token(HONEST), timeout_s=2.0)) as orb:
            assert orb.proxy(impostor.reference("service"), mq.Mq_Service).isEnabled()
        first = _parsed(impostor.heard)
        second = _parsed(said[0].raw)
    assert (first.type, msgpack.unpackb(first.data)["handshake"]["token"]) == (CONNECT, HONEST)
    assert second.type == INVOKE
    assert msgpack.unpackb(second.data) == ["service", "isEnabled", [], {}]
    assert {name: len(content) for name, content in second.annotations.items()} == {"OMQD": 4}
    assert bytes(second.corr_id) == said[0].request_id


def _parsed(data: bytes) -> protocol.ReceivingMessage:
    """The first message in the data, as Pyro5 reads it."""
    message = protocol.ReceivingMessage(data[:40])
    message.add_payload(data[40 : 40 + message.data_size + message.annotations_size])
    return message


@pytest.fixture
def stock_server() -> Iterator[str]:
    """The reference of an object in a stock Pyro5 server."""
    with Pyro5.server.Daemon("127.0.0.1") as daemon:
        loop = threading.Thread(target=daemon.requestLoop)
        loop.start()
        yield f"PYRO:service@{daemon.locationStr}"
        daemon.shutdown()
        loop.join()


def test_a_stock_server_does_not_pass_for_one_of_ours(stock_server: str) -> None:
    with (
        contextlib.closing(NetworkOrb(timeout_s=2.0)) as orb,
        pytest.raises(system.TRANSIENT, match="no OnceMQ server") as refused,
    ):
        orb.proxy(stock_server, mq.Mq_Service).isEnabled()
    assert refused.value.completed is system.Completion.NO
