"""From settings to what a server listens with."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from idl import system
from idl.access import UnsafeSetting
from idl.call import Address, Call, Principal
from idl.serving import Entrance, Opening, not_listening
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


def test_a_port_that_is_taken_is_told_with_what_to_do() -> None:
    address = Address("127.0.0.1", 9)
    taken = OSError(errno.EADDRINUSE, "Address already in use (while attempting to bind …)")
    told = "cannot listen on 127.0.0.1:9: Address already in use; another program listens there: "
    assert not_listening(address, taken).startswith(told)
    denied = OSError(errno.EACCES, "Permission denied")
    assert not_listening(address, denied) == "cannot listen on 127.0.0.1:9: Permission denied"


def test_a_file_of_secrets_that_is_not_there_is_named(tmp_path: Path) -> None:
    flags = {"server.tokens": str(tmp_path / "tokens")}
    with pytest.raises(UnsafeSetting, match="tokens cannot be read: No such file"):
        Entrance(combine(Program.NODE, flags, {}, None), "server")
