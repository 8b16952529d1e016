"""A secret is told to nobody but the handshake, and what is one caller's reaches no other."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import logging
import pickle
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import msgpack
import pytest

from idl import cos, mq, system
from idl.access import Presented, Token, Tokens, UnsafeSetting, token_entry
from idl.call import Address, within
from idl.orb import NetworkOrb
from idl.orb.audit import LINES_PER_SECOND_MAX, Audit
from idl.orb.client import Connector
from idl.orb.guard import Limits
from tests.security.attacker import EXCEPTION, Wire, call, login
from tests.security.watched import HONEST, OTHER, Watched, wait_until

CANARY = "canary.feedfacecafebeef0123456789abcdef"
SECRET = CANARY.partition(".")[2]


# --- S22: a token shows itself to nobody ---------------------------------------------------------


@pytest.mark.parametrize("show", [repr, str, "{}".format, "{!r:>40}".format, ascii])
def test_a_token_does_not_show_itself(show: Callable[[object], str]) -> None:
    orb = NetworkOrb(token=Token(CANARY))
    service = orb.proxy("PYRO:service@127.0.0.1:9", mq.Mq_Service)
    connector = Connector(Address("127.0.0.1", 9), None, Token(CANARY), Limits())
    presented = Presented(CANARY, None, "127.0.0.1")
    tokens = Tokens(dict([token_entry(CANARY).split(":")]))
    for holder in (Token(CANARY), orb, service, connector, presented, tokens, [Token(CANARY)]):
        assert SECRET not in show(holder)
    assert SECRET not in show(vars(orb))
    assert SECRET not in show(vars(tokens))


@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_token_is_neither_pickled_nor_copied(duplicate: Callable[[object], object]) -> None:
    with pytest.raises(TypeError, match="token"):
        duplicate(Token(CANARY))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_nothing_that_is_pickled_has_the_token_in_it(protocol: int) -> None:
    orb = NetworkOrb(token=Token(CANARY))
    service = orb.proxy("PYRO:service@127.0.0.1:9", mq.Mq_Service)
    for holder in (orb, service, {"service": service}):
        with pytest.raises(TypeError):
            pickle.dumps(holder, protocol)


def test_no_exception_of_a_client_has_its_token_in_it(victim: Watched) -> None:
    told = []
    for place in (str(victim.address), "127.0.0.1:1", "0.0.0.0:1"):
        with (
            contextlib.closing(NetworkOrb(token=Token(CANARY), timeout_s=1.0)) as orb,
            pytest.raises(system.SystemException) as raised,
        ):
            orb.proxy(f"PYRO:service@{place}", mq.Mq_Service).isEnabled()
        told += [str(raised.value), repr(raised.value)]
        told += ["".join(traceback.format_exception(raised.value))]
        told += [pickle.dumps(raised.value, 0).decode("latin-1")]
    assert SECRET not in " ".join(told)


def test_no_token_gets_into_a_log_or_the_audit(victim: Watched) -> None:
    forged = f"nobody.{SECRET}"
    for token in (CANARY, forged, [CANARY], {"token": CANARY}, CANARY * 20):
        with victim.connect() as wire:
            wire.send(login(token))
            wire.reply()
    with victim.connect() as wire:
        wire.send(login(CANARY, flags=0xFFFF))
        wire.reply()
    with victim.logged_in() as wire:
        wire.answer(call(1, "service", "mqShutdown"))
        wire.answer(call(2, "service", "setEnabled", CANARY))
        wire.send(login(CANARY))
        wire.reply()
    text = victim.log_text()
    assert "login denied" in text
    for secret in (SECRET, HONEST.partition(".")[2], OTHER.partition(".")[2]):
        assert secret not in text


def test_no_token_gets_into_a_log_of_the_client(
    victim: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        victim.status()
        with (
            contextlib.closing(victim.honest_orb(CANARY)) as orb,
            pytest.raises(system.NO_PERMISSION),
        ):
            orb.proxy(victim.reference("service"), mq.Mq_Service).isEnabled()
    assert SECRET not in caplog.text
    assert HONEST not in caplog.text


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
def test_a_file_of_tokens_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "tokens"
    path.write_text(token_entry(CANARY))
    path.chmod(mode)
    for load in (Tokens.load, Token.load):
        with pytest.raises(UnsafeSetting, match="chmod 600") as refused:
            load(path)
        assert SECRET not in str(refused.value)


def test_a_file_of_tokens_that_is_wrong_is_refused_without_quoting_it(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.touch(mode=0o600)
    for text in (CANARY, f"{CANARY}\n", f"name:{SECRET}", f"a:{'0' * 64}\n{SECRET}"):
        path.write_text(text)
        with pytest.raises(UnsafeSetting) as refused:
            Tokens.load(path)
        assert SECRET not in "".join(traceback.format_exception(refused.value))


# --- S23: nothing of one caller reaches another --------------------------------------------------


def _context(canary: bytes) -> cos.PropagationContext:
    identity = cos.TransIdentity(None, None, cos.otid_t(7, 0, canary))
    return cos.PropagationContext(30, identity, (), canary.decode())


def test_the_transaction_of_one_client_never_reaches_another(victim: Watched) -> None:
    with (
        contextlib.closing(victim.honest_orb(HONEST)) as one,
        contextlib.closing(victim.honest_orb(OTHER)) as other,
    ):
        services = [orb.proxy(victim.reference("service"), mq.Mq_Service) for orb in (one, other)]
        for turn in range(20):
            with within(_context(b"canary %d" % turn)):
                assert "canary" in services[0].getStatus()
                with pytest.raises(system.UNKNOWN):
                    services[0].mqShutdown()
            told = json.loads(services[1].getStatus())
            assert told["transaction"] is None
            assert told["principal"] == "other"
            assert json.loads(services[0].getStatus())["transaction"] is None


def test_a_call_without_a_transaction_does_not_inherit_that_of_the_one_before(
    victim: Watched,
) -> None:
    packed = msgpack.packb((9, (None, None, (7, 0, b"canary")), (), "canary"))
    with victim.logged_in() as wire:
        assert (
            b"canary"
            in wire.answer(call(1, "coordinator", "get_txcontext", transaction=packed)).body
        )
        assert wire.answer(call(2, "service", "mqShutdown", transaction=packed)).flags & EXCEPTION
        assert wire.answer(call(3, "coordinator", "get_txcontext")).exception == "Unavailable"


def test_an_answer_carries_nothing_but_itself(victim: Watched) -> None:
    def answers(wire: Wire) -> list[bytes]:
        forged = [call(seq, "service", "isEnabled") for seq in range(1, 4)]
        return [wire.answer(each).raw for each in forged]

    with victim.logged_in(HONEST) as one, victim.logged_in(OTHER) as other:
        before = answers(other)
        one.answer(call(1, "service", "mqShutdown", transaction=b"\x91\xa6canary"))
    with victim.logged_in(OTHER) as other:
        assert answers(other) == before


# --- S24: what is logged stays on its line -------------------------------------------------------

HOSTILE = 'a\r\nb\n{"event": "login"}\0\x1b[2J\x1b]0;x\x07\u202e\u2028\u2029\x85\x7f"\\'


@pytest.fixture
def audited() -> Iterator[io.StringIO]:
    """What the audit's logger writes."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    logger = logging.getLogger("oncemq.audit")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield written
    logger.removeHandler(handler)
    logger.setLevel(level)


def test_hostile_text_in_the_audit_stays_on_its_line(audited: io.StringIO) -> None:
    audit = Audit(lambda: 100.0)
    audit.record("login denied", host=HOSTILE, reason=ValueError(HOSTILE), principal=HOSTILE * 50)
    audit.record("login", host="127.0.0.1")
    text = audited.getvalue()
    first, second = text.splitlines()
    assert json.loads(first)["host"] == HOSTILE
    assert json.loads(second)["event"] == "login"
    assert text.replace("\n", "").isprintable()
    assert text.isascii()
    assert len(first) < 5000


def test_a_flood_of_audit_lines_is_counted_and_not_written(audited: io.StringIO) -> None:
    now = [100.0]
    audit = Audit(lambda: now[0])
    for _ in range(10 * LINES_PER_SECOND_MAX):
        audit.record("connection shed")
    now[0] = 101.0
    audit.record("connection shed")
    lines = [json.loads(line) for line in audited.getvalue().splitlines()]
    assert len(lines) == LINES_PER_SECOND_MAX + 2
    [left_out] = [line for line in lines if "left out" in line["event"]]
    assert left_out["count"] == 9 * LINES_PER_SECOND_MAX


def test_a_flood_of_one_kind_does_not_hide_a_line_of_another(audited: io.StringIO) -> None:
    audit = Audit(lambda: 100.0)
    for _ in range(2 * LINES_PER_SECOND_MAX):
        audit.record("connection shed")
    audit.record("login", principal="mallory")
    assert "mallory" in audited.getvalue()


@pytest.mark.parametrize("hostile", ["a\r\nb", "a\0b", "a\x1b[2Jb", "a\u202eb", "a\u2028b"])
def test_a_hostile_name_comes_back_and_is_logged_escaped_or_not_at_all(
    victim: Watched, hostile: str
) -> None:
    since = victim.log_position()
    with victim.unharmed(), victim.logged_in() as wire:
        for seq, forged in enumerate(
            (
                call(1, hostile, "isEnabled"),
                call(2, "service", hostile),
                call(3, "coordinator", "register_resource", f"PYRO:{hostile}@127.0.0.1:9"),
                call(4, "coordinator", "register_resource", f"PYRO:x@{hostile}:9"),
                call(5, "synchronization", "after_completion", hostile),
            ),
            start=1,
        ):
            reply = wire.answer(forged)
            assert reply.seq == seq
            assert reply.exception
            assert reply.plain[1][0].isprintable()
    assert hostile not in victim.log_text()[since:]


def test_a_refused_frame_and_a_login_each_have_one_line_in_the_audit(calm: Watched) -> None:
    since = calm.log_position()
    with calm.logged_in(OTHER) as wire:
        wire.send(call(7, "service", "isEnabled"))
        assert wire.reply() is None
    assert wait_until(lambda: bool(calm.audited("frame refused", since)), 1.0)
    [refused] = calm.audited("frame refused", since)
    assert (refused["host"], refused["principal"]) == ("127.0.0.1", "other")
    [logged_in] = calm.audited("login", since)
    assert logged_in["principal"] == "other"
