"""A call is for the server that let its sender in, and for none that is started after it.

What was kept on the way, or recorded, and is sent on a connection of its own after a restart, is
refused before anything looks at it: the server has forgotten what went before, so that it cannot
tell the copy from a new call.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import msgpack
import pytest

from idl import mq, system
from idl.access import Token
from idl.call import Address
from idl.orb import NetworkOrb
from tests.security.attacker import CONNECT, CONNECTED, Reply, Wire, call, login
from tests.security.impostor import Impostor, let_in, result
from tests.security.victim import Fifo, Service
from tests.security.watched import HONEST

LIFE_BYTES = 8
PUT = (None, (1, 2, (3, 4), "copied"), (), b"once")


@pytest.fixture(params=["in turns", "a thread for each"])
def takes_turns(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "in turns")


class Lives:
    """A server that is started again at the same address, with nothing left in its memory."""

    def __init__(self, takes_turns: bool) -> None:
        self._takes_turns = takes_turns
        self.address = Address("127.0.0.1", 0)
        self.start()

    def start(self) -> None:
        """A life of its own begins."""
        self.orb = NetworkOrb(self.address, takes_turns=self._takes_turns)
        assert self.orb.address is not None
        self.address = self.orb.address
        self.fifo, self.service = Fifo(), Service()
        self.orb.publish(self.fifo, mq.Mq_Fifo, "fifo")
        self.orb.publish(self.service, mq.Mq_Service, "service")

    def restart(self) -> None:
        """One life ends, and the next begins."""
        self.orb.close()
        self.start()

    def put(self, life: bytes = b"") -> Reply | None:
        """What the server answers to a put on a connection of its own; None if it ends that."""
        wire, _ = self.let_in()
        with contextlib.closing(wire.sock):
            wire.send(call(1, "fifo", "mqPut", *PUT, life=life))
            return wire.reply()

    def let_in(self) -> tuple[Wire, bytes]:
        """A connection that was let in, and the life that was told with that."""
        wire = Wire.to(self.address)
        wire.send(login())
        welcome = wire.reply()
        assert welcome is not None
        assert welcome.kind == CONNECTED
        return wire, welcome.plain["life"]

    def life(self) -> bytes:
        """The life that a login tells now."""
        wire, life = self.let_in()
        wire.sock.close()
        return life

    def kept(self) -> int:
        """How many messages have been put in this life."""
        return len(self.fifo._kept)


@pytest.fixture
def lives(takes_turns: bool) -> Iterator[Lives]:
    made = Lives(takes_turns)
    yield made
    made.orb.close()


def test_a_life_is_told_with_each_login_and_is_another_after_each_start(lives: Lives) -> None:
    first = lives.life()
    assert (lives.life(), len(first)) == (first, LIFE_BYTES)
    lives.restart()
    assert lives.life() != first


def test_a_copy_is_served_in_the_life_that_it_is_for(lives: Lives) -> None:
    answers = [lives.put(lives.life()) for _ in range(2)]
    assert [answer and answer.exception for answer in answers] == ["", ""]
    assert lives.kept() == 2


def test_a_copy_from_a_former_life_is_refused_and_noted(
    lives: Lives, caplog: pytest.LogCaptureFixture
) -> None:
    life = lives.life()
    assert lives.put(life) is not None
    lives.restart()
    with caplog.at_level(logging.INFO, "oncemq"):
        assert lives.put(life) is None
    assert lives.kept() == 0
    assert "as it was before a restart" in caplog.text


@pytest.mark.parametrize("life", [b"\0" * LIFE_BYTES, b"short", b"l" * 9, b"x" * 3000])
def test_a_life_that_never_was_is_refused(lives: Lives, life: bytes) -> None:
    answer = lives.put(life)
    # As damaged, or as a former one.
    assert answer is None or answer.exception == "MARSHAL"
    assert lives.kept() == 0
    assert lives.put(lives.life()) is not None


def test_a_client_of_an_earlier_version_names_no_life_and_is_served(lives: Lives) -> None:
    answer = lives.put()
    assert answer is not None
    assert answer.exception == ""
    assert lives.kept() == 1


def test_a_client_goes_on_with_the_next_life(lives: Lives) -> None:
    with contextlib.closing(NetworkOrb(timeout_s=5.0)) as client:
        service = client.proxy(f"PYRO:service@{lives.address}", mq.Mq_Service)
        assert service.isEnabled()
        lives.restart()
        assert service.isEnabled()


# --- What a server may say -----------------------------------------------------------------------


@pytest.mark.parametrize("told", [{}, {"life": b""}, {"life": b"one life"}])
def test_a_client_names_the_life_that_it_was_told(told: dict[str, object]) -> None:
    said: list[Reply] = []

    def converse(wire: Wire, request: Reply) -> None:
        if request.kind == CONNECT:
            let_in(wire, request, **told)
            return
        said.append(request)
        wire.send(result(request, True))

    with (
        Impostor(converse) as impostor,
        contextlib.closing(NetworkOrb(token=Token(HONEST), timeout_s=2.0)) as client,
    ):
        assert client.proxy(impostor.reference("service"), mq.Mq_Service).isEnabled()
    life = told.get("life", b"")
    assert isinstance(life, bytes)
    beside = said[0].raw[40 : len(said[0].raw) - len(said[0].body)]
    assert beside[12:] == (b"OMQL\0\0\0\x08" + life if life else b"")


@pytest.mark.parametrize("life", [b"short", b"x" * 2000, "one life", 7, None, [1] * 8])
def test_a_server_that_tells_no_proper_life_is_none_of_ours(life: object) -> None:
    with (
        Impostor(lambda wire, request: let_in(wire, request, life=life)) as impostor,
        contextlib.closing(NetworkOrb(timeout_s=2.0)) as client,
        pytest.raises(system.TRANSIENT, match="no OnceMQ server of this version") as refused,
    ):
        client.proxy(impostor.reference("service"), mq.Mq_Service).isEnabled()
    assert refused.value.completed is system.Completion.NO


@pytest.mark.parametrize("welcome", [None, [], "welcome", 1, {"life": {}}])
def test_whatever_a_server_says_for_a_welcome_breaks_no_client(welcome: object) -> None:
    def converse(wire: Wire, request: Reply) -> None:
        told = result(request, True)
        if request.kind == CONNECT:
            told = type(told)(CONNECTED, msgpack.packb(welcome), 0, request_id=bytes(16))
        wire.send(told)

    with (
        Impostor(converse) as impostor,
        contextlib.closing(NetworkOrb(timeout_s=2.0)) as client,
    ):
        service = client.proxy(impostor.reference("service"), mq.Mq_Service)
        if isinstance(welcome, dict):
            with pytest.raises(system.TRANSIENT, match="no OnceMQ server"):
                service.isEnabled()
        else:
            assert service.isEnabled()
