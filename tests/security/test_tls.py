"""Through TLS, each side knows the other by our own authority alone, or there is no connection."""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509

from idl import mq, system
from idl.access import Tls, Token, UnsafeSetting
from idl.orb import NetworkOrb
from tests.security.attacker import CONNECTED, NOT_CONNECTED, Wire, call, login
from tests.security.authority import (
    CLIENT,
    HERE,
    SERVER,
    Authority,
    Identity,
    careless_server,
)
from tests.security.impostor import Impostor, let_in, saying_nothing
from tests.security.watched import HONEST, Watched

ALICE = (x509.UniformResourceIdentifier("mq:alice"),)
CANARY = "canary.0123456789abcdef0123456789abcdef"


def _uri(*names: str) -> tuple[x509.GeneralName, ...]:
    return tuple(x509.UniformResourceIdentifier(name) for name in names)


def test_a_client_is_who_its_certificate_says(tls_victim: Watched, authority: Authority) -> None:
    tls = authority.tls(authority.client("alice"))
    with contextlib.closing(tls_victim.honest_orb(token=None, tls=tls)) as orb:
        status = orb.proxy(tls_victim.reference("service"), mq.Mq_Service).getStatus()
    assert '"principal": "alice"' in status


def test_a_client_without_a_certificate_proves_itself_by_its_token(tls_victim: Watched) -> None:
    with tls_victim.unharmed():
        assert tls_victim.status()["principal"] == "honest"


# S18
def test_a_client_with_neither_certificate_nor_token_is_not_allowed(tls_victim: Watched) -> None:
    with tls_victim.unharmed(), tls_victim.connect() as wire:
        reply = wire.answer(login())
        assert (reply.kind, reply.plain) == (NOT_CONNECTED, "not allowed")


Issue = Callable[[Authority, Authority], Identity]

# S18: what each certificate lacks. All but the foreign one are signed by the right authority.
UNFIT: dict[str, Issue] = {
    "foreign authority": lambda ours, foreign: foreign.issue("foreign", ALICE, (CLIENT,)),
    "expired": lambda ours, foreign: ours.issue("expired", ALICE, (CLIENT,), from_day=-10),
    "not yet valid": lambda ours, foreign: ours.issue("early", ALICE, (CLIENT,), from_day=10),
    "of a server": lambda ours, foreign: ours.issue("of-server", HERE, (SERVER,)),
    "for servers only": lambda ours, foreign: ours.issue("misused", ALICE, (SERVER,)),
    "for signing mail": lambda ours, foreign: ours.issue(
        "mail", ALICE, (x509.oid.ExtendedKeyUsageOID.EMAIL_PROTECTION,)
    ),
}
NAMELESS: dict[str, tuple[x509.GeneralName, ...]] = {
    "only a host": HERE,
    "another scheme": _uri("http:alice"),
    "upper case scheme": _uri("MQ:alice"),
    "an empty name": _uri("mq:"),
    "two principals": _uri("mq:alice", "mq:root"),
    "an odd name": _uri("mq:../alice"),
    "a new line": _uri("mq:alice\nroot"),
    "a NUL": _uri("mq:alice\0root"),
    "a long name": _uri("mq:" + "a" * 129),
    "mail": (x509.RFC822Name("alice@example.invalid"),),
}


# S18
@pytest.mark.parametrize("case", UNFIT)
def test_a_client_certificate_that_is_not_fit_ends_the_greeting(
    tls_victim: Watched, authority: Authority, stranger: Authority, case: str
) -> None:
    context = authority.careless_client(UNFIT[case](authority, stranger))
    with (
        tls_victim.unharmed(),
        contextlib.ExitStack() as stack,
        contextlib.suppress(ssl.SSLError, ConnectionError),
    ):
        wire = stack.enter_context(Wire.to(tls_victim.address, context))
        # Not even the right token helps whoever shows a wrong certificate.
        wire.send(login(HONEST), call(1, "service", "isEnabled"))
        assert wire.is_cut_at_once()


# S18
@pytest.mark.parametrize("case", NAMELESS)
def test_a_client_certificate_that_names_no_principal_is_not_allowed(
    tls_victim: Watched, authority: Authority, case: str
) -> None:
    identity = authority.issue(f"nameless-{len(case)}", NAMELESS[case], (CLIENT,))
    with (
        tls_victim.unharmed(),
        Wire.to(tls_victim.address, authority.careless_client(identity)) as wire,
    ):
        reply = wire.answer(login())
        assert (reply.kind, reply.plain) == (NOT_CONNECTED, "not allowed")


# S18
def test_an_orb_whose_certificate_is_foreign_is_told_without_harm(
    tls_victim: Watched, authority: Authority, stranger: Authority
) -> None:
    foreign = stranger.client("mallory")
    tls = Tls(authority.certificate, foreign.certificate, foreign.key)
    with tls_victim.unharmed(), contextlib.closing(tls_victim.honest_orb(HONEST, tls)) as orb:
        with pytest.raises(system.SystemException, match="certificate") as refused:
            orb.proxy(tls_victim.reference("service"), mq.Mq_Service).isEnabled()
        assert refused.value.completed is system.Completion.NO


def test_whoever_waits_awake_gets_its_answers_through_tls(tls_victim: Watched) -> None:
    with tls_victim.unharmed(), contextlib.closing(tls_victim.honest_orb(awake_s=0.001)) as orb:
        service = orb.proxy(tls_victim.reference("service"), mq.Mq_Service)
        assert [service.isEnabled() for _ in range(100)] == [True] * 100


# S18
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_a_client_of_an_older_tls_is_refused(tls_victim: Watched, authority: Authority) -> None:
    context = authority.careless_client(authority.client("old"))
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with tls_victim.unharmed(), pytest.raises(ssl.SSLError):
        Wire.to(tls_victim.address, context)


# S10
@pytest.mark.parametrize(
    "data", [login(HONEST).encode(), b"GET / HTTP/1.1\r\n\r\n", bytes(500)], ids=["login", "", "0"]
)
def test_clear_text_to_a_server_with_tls_is_cut(tls_victim: Watched, data: bytes) -> None:
    with tls_victim.unharmed(), Wire.to(tls_victim.address) as wire:
        wire.send(data)
        assert wire.is_cut_at_once()
        assert b"PYRO" not in wire.heard


def test_a_client_that_leaves_in_the_middle_of_the_greeting_is_forgotten(
    tls_victim: Watched,
) -> None:
    with tls_victim.unharmed():
        for _ in range(20):
            with Wire.to(tls_victim.address) as wire:
                wire.send(b"\x16\x03\x01\x02\x00\x01\x00")


# S19: what each server lacks, and what our client says about it.
IMPOSTORS: dict[str, Issue] = {
    "foreign authority": lambda ours, foreign: foreign.server("impostor"),
    "another address": lambda ours, foreign: ours.issue(
        "elsewhere", (x509.IPAddress(ipaddress.ip_address("127.0.0.2")),), (SERVER,)
    ),
    "another name": lambda ours, foreign: ours.issue(
        "renamed", (x509.DNSName("example.invalid"),), (SERVER,)
    ),
    "the address as a name": lambda ours, foreign: ours.issue(
        "dotted", (x509.DNSName("127.0.0.1"),), (SERVER,)
    ),
    "any name": lambda ours, foreign: ours.issue("wild", (x509.DNSName("*"),), (SERVER,)),
    "of a client": lambda ours, foreign: ours.issue("mallory", ALICE, (CLIENT,)),
    "for clients only": lambda ours, foreign: ours.issue("client-here", HERE, (CLIENT,)),
    "expired": lambda ours, foreign: ours.issue("outdated", HERE, (SERVER,), from_day=-10),
    "not yet valid": lambda ours, foreign: ours.issue("future", HERE, (SERVER,), from_day=10),
}


# S19
@pytest.mark.parametrize("case", IMPOSTORS)
def test_a_server_that_is_not_who_it_should_be_gets_no_token_and_no_call(
    authority: Authority, stranger: Authority, case: str
) -> None:
    context = careless_server(IMPOSTORS[case](authority, stranger))
    with Impostor(let_in, context) as impostor, contextlib.closing(_client(authority)) as orb:
        with pytest.raises(system.NO_PERMISSION, match="not who it should be") as refused:
            orb.proxy(impostor.reference(), mq.Mq_Service).isEnabled()
        assert refused.value.completed is system.Completion.NO
        assert impostor.visits == 1
        assert impostor.heard == b""


# S19
def test_a_server_without_tls_gets_no_token_from_a_client_that_has_it(
    authority: Authority,
) -> None:
    with Impostor(saying_nothing) as impostor, contextlib.closing(_client(authority)) as orb:
        with pytest.raises(system.SystemException):
            orb.proxy(impostor.reference(), mq.Mq_Service).isEnabled()
        assert CANARY.encode() not in impostor.heard


# S19
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_a_server_of_an_older_tls_gets_no_token(authority: Authority) -> None:
    context = careless_server(authority.server("old-server"))
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with Impostor(let_in, context) as impostor, contextlib.closing(_client(authority)) as orb:
        with pytest.raises(system.SystemException) as refused:
            orb.proxy(impostor.reference(), mq.Mq_Service).isEnabled()
        assert refused.value.completed is system.Completion.NO
        assert impostor.heard == b""


# S19
def test_a_client_trusts_no_authority_but_ours(authority: Authority) -> None:
    [trusted] = authority.tls().client_context().get_ca_certs()
    assert (("commonName", "ours"),) in trusted["subject"]


def test_two_servers_in_one_process_have_contexts_of_their_own(
    authority: Authority, stranger: Authority
) -> None:
    ours = authority.tls(authority.server("one")).server_context()
    foreign = stranger.tls(stranger.server("two")).server_context()
    assert ours.get_ca_certs() != foreign.get_ca_certs()


# S28
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620, 0o666])
def test_a_key_that_others_can_read_or_change_is_refused(
    authority: Authority, tmp_path: Path, mode: int
) -> None:
    sound = authority.server(f"exposed-{mode:o}")
    key = tmp_path / "exposed.key"
    key.write_bytes(sound.key.read_bytes())
    key.chmod(mode)
    tls = Tls(authority.certificate, sound.certificate, key)
    for context in (tls.server_context, tls.client_context):
        with pytest.raises(UnsafeSetting, match=r"exposed\.key.*chmod 600"):
            context()


# S28
@pytest.mark.parametrize(
    ("broken", "how"),
    [
        *itertools.product(("authority", "certificate", "key"), ("missing", "garbage", "empty")),
        ("certificate", "of another"),
        ("key", "of another"),
    ],
)
def test_a_tls_file_that_cannot_be_used_is_named(
    authority: Authority, tmp_path: Path, broken: str, how: str
) -> None:
    files = _files(authority, f"sound-{broken}-{how[:2]}")
    wrong = tmp_path / f"{how[:2]}-{broken}"
    if how == "of another":
        wrong = _files(authority, f"other-{broken}")[broken]
    elif how != "missing":
        wrong.touch(mode=0o600)
        wrong.write_text("garbage" if how == "garbage" else "")
    with pytest.raises(UnsafeSetting) as refused:
        Tls(**(files | {broken: wrong})).server_context()
    assert wrong.name in str(refused.value)


def _files(authority: Authority, name: str) -> dict[str, Path]:
    sound = authority.server(name)
    return {
        "authority": authority.certificate,
        "certificate": sound.certificate,
        "key": sound.key,
    }


def _client(authority: Authority) -> NetworkOrb:
    return NetworkOrb(tls=authority.tls(), token=Token(CANARY), timeout_s=1.0)


def test_the_login_of_an_honest_client_is_answered_through_tls(tls_victim: Watched) -> None:
    with tls_victim.unharmed(), tls_victim.connect() as wire:
        assert wire.answer(login(HONEST)).kind == CONNECTED
