"""A server that would let strangers in does not start, and the environment cannot change that."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from idl.access import AnyoneHere, Authenticator, Tls, Tokens, UnsafeSetting, check_listening
from idl.call import Address
from idl.orb import NetworkOrb
from tests.security.authority import Authority
from tests.security.watched import HONEST, ROOT, Setup, Watched, clean_environment

EVERYWHERE = ("0.0.0.0", "::", "192.0.2.1", "2001:db8::1", "::ffff:127.0.0.1", "example.invalid")
# Whatever Pyro5 would read, in values that would show.
ENVIRONMENT = {
    "PYRO_LOGWIRE": "1",
    "PYRO_LOGLEVEL": "DEBUG",
    "PYRO_LOGFILE": "{stderr}",
    "PYRO_SSL": "1",
    "PYRO_MAX_MESSAGE_SIZE": "100",
    "PYRO_COMPRESSION": "1",
    "PYRO_SERIALIZER": "serpent",
    "PYRO_COMMTIMEOUT": "0.001",
    "PYRO_DETAILED_TRACEBACK": "1",
    "PYRO_HOST": "0.0.0.0",
    "PYRO_NONSENSE": "1",
}
CLIENT = """
import sys
from idl import mq
from idl.access import Token
from idl.orb import NetworkOrb
orb = NetworkOrb(token=Token(sys.stdin.readline().strip()), timeout_s=5.0)
fifo = orb.proxy(sys.argv[1], mq.Mq_Fifo)
fifo.mqPut(None, mq.mqHeader(1, 2, mq.mqTimestamp(3, 4), "client"), (), b"payload canary" * 1000)
assert fifo.mqGetNext(None)[2] == b"payload canary" * 1000
orb.close()
"""


# S28
@pytest.mark.parametrize("host", EVERYWHERE)
@pytest.mark.parametrize("has", ["nothing", "TLS", "an authenticator"])
def test_a_server_for_other_machines_needs_both_tls_and_an_authenticator(
    authority: Authority, host: str, has: str
) -> None:
    tls: Tls | None = authority.tls() if has == "TLS" else None
    authenticator: Authenticator | None = Tokens({}) if has == "an authenticator" else None
    with pytest.raises(UnsafeSetting) as refused:
        NetworkOrb(Address(host, 0), tls=tls, authenticator=authenticator)
    told = str(refused.value)
    assert host in told
    lacking = told.partition("is not set up: ")[2].partition(";")[0]
    assert ("TLS" in lacking) is (tls is None)
    assert ("an authenticator" in told) is (authenticator is None)
    assert "127.0.0.1" in told


# S28
def test_a_server_for_other_machines_that_has_both_may_listen(authority: Authority) -> None:
    for host in EVERYWHERE:
        check_listening(host, authority.tls(), Tokens({}))


# S28
def test_whoever_is_here_is_no_authenticator_for_other_machines(authority: Authority) -> None:
    # With it nobody from elsewhere gets in, so it may listen; it lets in no more than before.
    check_listening("0.0.0.0", authority.tls(), AnyoneHere())


# S28
@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.8.8.8"])
def test_a_server_for_this_machine_needs_neither(host: str) -> None:
    check_listening(host, None, None)


# S28
def test_a_process_that_would_let_strangers_in_ends_with_an_error(tmp_path: Path) -> None:
    setup = Setup(tmp_path / "stranger.log", host="0.0.0.0", has_tokens=False)
    ended = subprocess.run(
        [sys.executable, "-m", "tests.security.victim"],
        cwd=ROOT,
        input=setup.line() + "\n",
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert ended.returncode != 0
    assert ended.stdout == ""
    assert "listening on 0.0.0.0 lets other machines in" in ended.stderr


@pytest.fixture(scope="module")
def misled(folder: Path) -> Iterator[Watched]:
    """A victim whose environment says what a server must not listen to."""
    setup = Setup(folder / "misled.log", environment=ENVIRONMENT)
    with contextlib.closing(Watched(setup)) as watched:
        yield watched


# S29
def test_a_server_does_not_listen_to_variables_of_pyro(misled: Watched) -> None:
    with misled.unharmed():
        _run_client(misled, {})
    text = misled.log_text()
    assert "payload canary" not in text
    assert HONEST not in text
    assert misled.stderr.read_text() == ""


# S29
def test_a_client_does_not_listen_to_variables_of_pyro(victim: Watched) -> None:
    with victim.unharmed():
        assert _run_client(victim, ENVIRONMENT) == ""


# S29
def test_a_program_that_uses_pyro_itself_does_not_change_our_frames(victim: Watched) -> None:
    settings = (
        "import Pyro5\n"
        "Pyro5.config.COMPRESSION = Pyro5.config.LOGWIRE = True\n"
        "Pyro5.config.MAX_MESSAGE_SIZE = 100\n"
    )
    first, _, rest = CLIENT.partition("fifo.mqPut")
    with victim.unharmed():
        assert _run_client(victim, {}, settings + CLIENT) == ""
        assert _run_client(victim, {}, f"{first}{settings}fifo.mqPut{rest}") == ""


def _run_client(watched: Watched, environment: dict[str, str], program: str = CLIENT) -> str:
    """What an honest client in a process of its own has printed."""
    ended = subprocess.run(
        [sys.executable, "-c", program, watched.reference("fifo")],
        cwd=ROOT,
        env=clean_environment() | environment,
        input=HONEST,
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout + ended.stderr
