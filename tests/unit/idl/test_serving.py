"""From settings to what a server listens with."""

from __future__ import annotations

import os

import pytest

from idl import system
from idl.access import UnsafeSetting
from idl.call import Address, Call, Principal
from idl.serving import Entrance, Opening, yield_to_callers
from idl.settings import Program, combine

CALL = Call(bytes(16), Principal("local"), "127.0.0.1")


def test_limits_and_addresses_are_as_set() -> None:
    flags = {"server.listen": "127.0.0.1:9", "limits.connections": "7", "server.trust": ["a:1"]}
    entrance = Entrance(combine(Program.NODE, flags, {}, None), "server")
    assert entrance.listen == Address("127.0.0.1", 9)
    assert entrance.limits.connections_max == 7
    assert entrance.trusted == {Address("a", 1)}
    assert entrance.authenticator is None


def test_beyond_this_machine_it_is_refused_without_tls_and_tokens() -> None:
    settings = combine(Program.COORDINATOR, {"coordinator.listen": "0.0.0.0:1"}, {}, None)
    with pytest.raises(UnsafeSetting):
        Entrance(settings, "coordinator")


def test_a_certificate_without_an_authority_is_refused() -> None:
    settings = combine(Program.NODE, {"tls.key": "k"}, {}, None)
    with pytest.raises(UnsafeSetting, match=r"tls\.authority is not"):
        Entrance(settings, "server")


def test_who_calls_too_early_is_asked_to_try_again() -> None:
    asked = []
    opening = Opening("node", lambda *call: asked.append(call))
    with pytest.raises(system.TRANSIENT):
        opening.authorize(CALL, "node", "getNode")
    opening.is_ready = True
    opening.authorize(CALL, "node", "getNode")
    assert asked == [(CALL, "node", "getNode")]


def test_a_server_yields_to_its_callers_where_the_system_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(
        os, "sched_setscheduler", lambda pid, policy, _: asked.append((pid, policy))
    )
    yield_to_callers()
    assert asked == [(0, os.SCHED_BATCH)]


def test_a_system_that_does_not_allow_it_is_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise PermissionError("not here")

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    yield_to_callers()
    monkeypatch.delattr(os, "sched_setscheduler")
    yield_to_callers()
