"""Every operation of a node has its permission, nobody gets past it, and refusals are audited."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from idl import system
from idl.coordination import Mq_Settler
from idl.cos import EventChannel, Resource
from idl.local import LocalOrb
from idl.marshal import operation_codecs
from idl.mq import (
    Mq_Fifo,
    Mq_Standard,
    mqCompletion,
    mqHeader,
    mqQueueSettings,
    mqTimestamp,
    mqWork,
)
from idl.otids import member_name, split_otid
from idl.toml_files import BadFile
from mqserver.node import Node
from mqserver.permissions import OPERATION_RIGHTS, Need, Permissions, Right
from mqserver.storage.memory import MemoryStorage
from tests.security.attacker import call
from tests.security.guarded_node import ALL, ALONE, FILE, GuardedNode, batch, token_of

HEADER = mqHeader(0, 0, mqTimestamp(0, 0), "")
PLAIN = mqQueueSettings(True, False, 0, 0)


@pytest.fixture(scope="module")
def guarded() -> Iterator[GuardedNode]:
    with contextlib.closing(GuardedNode()) as made:
        yield made


class _Listing(LocalOrb):
    """Remembers what is published."""

    def __init__(self) -> None:
        super().__init__()
        self.interfaces: dict[str, type] = {}

    def publish(self, servant: Any, interface: type, name: str | None = None) -> Any:
        assert name is not None, "what a node publishes at its start has a name"
        self.interfaces[name] = interface
        return super().publish(servant, interface, name)

    def publish_family(self, prefix: str, find: Any, interface: type) -> None:
        self.interfaces[prefix] = interface
        super().publish_family(prefix, find, interface)


def test_every_operation_that_a_node_publishes_has_its_permission() -> None:
    orb = _Listing()
    node = Node(orb, MemoryStorage(lambda: 0.0), name="listed")
    node.start()
    try:
        published = {
            name: set(operation_codecs(interface)) for name, interface in orb.interfaces.items()
        }
        assert published == {name: set(rules) for name, rules in OPERATION_RIGHTS.items()}
    finally:
        node.close()


# Families of one object.
SINGLE = ("node", "admin", "settler", "decider", "carried")


# S13, S14
@pytest.mark.parametrize("principal", ["nobody", "alice"])
def test_what_a_caller_has_no_right_to_is_refused_before_anything_is_read(
    guarded: GuardedNode, principal: str
) -> None:
    """The arguments are nonsense, and nobody gets to hear of it."""
    may = {"alice": {Right.READ, Right.WRITE, Right.BROWSE}, "nobody": set()}[principal]
    open_to_all = {Need.ANYONE, Need.VISIBLE}
    if may:
        open_to_all |= {Need.OWNER, Need.WORK}
    with guarded.unharmed(), guarded.wire(principal) as wire:
        seq = 0
        for family, rules in OPERATION_RIGHTS.items():
            for operation, rule in rules.items():
                seq += 1
                name = family if family in SINGLE else f"{family}/c.other"
                reply = wire.answer(call(seq, name, operation, "nonsense", 3, None))
                is_elsewhere = "/" in name and rule not in (Need.OWNER,)
                is_refused = is_elsewhere or (rule not in open_to_all and rule not in may)
                expected = reply.exception == "NO_PERMISSION"
                assert expected is is_refused, (family, operation, reply.exception)


def _put(guarded: GuardedNode, who: str) -> object:
    return guarded.as_node(who).putMany(ALONE, 0, "a.one", batch(b"x"))


def _get(guarded: GuardedNode, who: str) -> object:
    return guarded.as_node(who).getMany(ALONE, 0, "a.one", ALL, 1, 0)


def _browse(guarded: GuardedNode, who: str) -> object:
    return guarded.as_node(who).browse("a.one", ALL, "", 1)


def _create(guarded: GuardedNode, who: str) -> object:
    return guarded.as_admin(who).createQueue(f"a.made.by.{who}", PLAIN)


def _fifo_put(guarded: GuardedNode, who: str) -> object:
    fifo = guarded.orb(who).proxy(guarded.reference("fifo/a.one"), Mq_Fifo)
    return fifo.mqPut(None, HEADER, (), b"x")


def _standard_read(guarded: GuardedNode, who: str) -> object:
    standard = guarded.orb(who).proxy(guarded.reference("standard/a.one"), Mq_Standard)
    return standard.mqRead("000000000000001")


def _prioritize(guarded: GuardedNode, who: str) -> object:
    fifo = guarded.orb(who).proxy(guarded.reference("fifo/a.one"), Mq_Fifo)
    return fifo.mqSetPriorization(False)


# S13
@pytest.mark.parametrize(
    ("act", "allowed"),
    [
        (_put, {"alice", "writer"}),
        (_fifo_put, {"alice", "writer"}),
        (_get, {"alice", "reader"}),
        (_browse, {"alice", "reader", "browser"}),
        (_standard_read, {"alice", "reader", "browser"}),
        (_create, {"keeper", "root"}),
        (_prioritize, {"keeper", "root"}),
    ],
)
def test_a_right_is_had_by_those_who_were_given_it_and_nobody_else(
    guarded: GuardedNode, act: Callable[[GuardedNode, str], object], allowed: set[str]
) -> None:
    _put(guarded, "alice")
    did = set()
    with guarded.unharmed():
        for who in ("alice", "bob", "reader", "writer", "browser", "keeper", "root", "tx"):
            with contextlib.suppress(system.NO_PERMISSION):
                act(guarded, who)
                did.add(who)
    assert did == allowed


# S13
@pytest.mark.parametrize("operation", ["deleteQueue", "purgeQueue", "getQueue"])
def test_queues_of_others_are_not_touched_and_not_even_known(
    guarded: GuardedNode, operation: str
) -> None:
    _put(guarded, "alice")
    told = set()
    for queue in ("a.one", "a.nosuch"):
        with pytest.raises(system.NO_PERMISSION) as refused:
            getattr(guarded.as_admin("bob"), operation)(queue)
        told.add(str(refused.value).replace(queue, "Q"))
    assert len(told) == 1
    assert all(info.queue.startswith("b.") for info in guarded.as_admin("bob").listQueues())


# S13
def test_a_push_down_is_refused_as_a_whole(guarded: GuardedNode) -> None:
    with guarded.unharmed():
        work = (
            mqWork("a.one", batch(b"mine"), ()),
            mqWork("b.one", batch(b"not mine"), ()),
        )
        before = guarded.as_node("alice").countMessages("a.one")
        with pytest.raises(system.NO_PERMISSION):
            guarded.as_node("alice").pushDown(
                guarded.branch(), 1, work, mqCompletion.COMMIT_ONE_PHASE
            )
        assert guarded.as_node("alice").countMessages("a.one") == before


# S14, S30
@pytest.mark.parametrize("family", ["resource", "branch"])
@pytest.mark.parametrize(
    "operation", ["prepare", "commit", "commit_one_phase", "rollback", "forget"]
)
def test_only_the_coordinator_ends_a_branch_whoever_knows_its_name(
    guarded: GuardedNode, family: str, operation: str
) -> None:
    branch = guarded.branch()
    guarded.as_node("alice").putMany(branch, 1, "a.decided", batch(b"x"))
    gtrid, _ = split_otid(branch.otid)
    reference = guarded.reference(member_name(family, gtrid, "n1"))
    with guarded.unharmed():
        for who in ("alice", "bob", "root", "keeper", "nobody"):
            with pytest.raises(system.NO_PERMISSION):
                getattr(guarded.orb(who).proxy(reference, Resource), operation)()
            settler = guarded.orb(who).proxy(guarded.reference("settler"), Mq_Settler)
            with pytest.raises(system.NO_PERMISSION):
                settler.settle((branch.otid,))
            with pytest.raises(system.NO_PERMISSION):
                settler.commitBranches((branch.otid,))
    guarded.orb("tx").proxy(reference, Resource).rollback()
    assert guarded.as_node("alice").countMessages("a.decided") == 0


# S14
@pytest.mark.parametrize("operation", ["mqShutdown", "getStatus", "listBranches", "listConsumers"])
def test_the_node_itself_is_for_operators(guarded: GuardedNode, operation: str) -> None:
    with guarded.unharmed():
        for who in ("alice", "keeper", "tx", "nobody"):
            with pytest.raises(system.NO_PERMISSION):
                getattr(guarded.as_admin(who), operation)()
        if operation != "mqShutdown":
            getattr(guarded.as_admin("root"), operation)()


def test_a_channel_is_for_those_who_may_use_its_name(guarded: GuardedNode) -> None:
    def channel(who: str) -> EventChannel:
        return guarded.orb(who).proxy(guarded.reference("channel/a.news"), EventChannel)

    with guarded.unharmed():
        channel("browser").for_consumers()
        for who in ("bob", "nobody", "tx"):
            with pytest.raises(system.NO_PERMISSION):
                channel(who).for_consumers()
        with pytest.raises(system.NO_PERMISSION):
            channel("browser").for_suppliers()
        with pytest.raises(system.NO_PERMISSION):
            channel("bob").destroy()


def test_a_refusal_is_in_the_audit_and_no_secret_is(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with contextlib.closing(GuardedNode()) as calm, pytest.raises(system.NO_PERMISSION):
        calm.as_node("bob").getMany(ALONE, 0, "a.secret", ALL, 1, 0)
    lines = [each.getMessage() for each in caplog.records if each.name == "oncemq.audit"]
    refused = [json.loads(line) for line in lines if '"refused"' in line]
    assert {"event", "principal", "operation", "target"} <= refused[-1].keys()
    assert (refused[-1]["principal"], refused[-1]["target"]) == ("bob", "a.secret")
    assert token_of("bob") not in caplog.text


# --- The file ------------------------------------------------------------------------------------


# S28
def test_a_file_that_others_could_have_written_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "permissions.toml"
    path.write_text(FILE)
    path.chmod(0o602)
    with pytest.raises(BadFile, match="can be changed by everybody"):
        Permissions.load(path, lambda: 0.0)
    path.chmod(0o640)
    Permissions.load(path, lambda: 0.0)
    if os.geteuid() == 0:
        os.chown(path, 12345, 12345)
        with pytest.raises(BadFile, match="belongs to another user"):
            Permissions.load(path, lambda: 0.0)


def test_what_is_no_readable_file_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="cannot be read: No such file"):
        Permissions.load(tmp_path / "nosuch", lambda: 0.0)
    with pytest.raises(BadFile, match="is not a plain file"):
        Permissions.load(tmp_path, lambda: 0.0)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadFile, match="is not a plain file"):
        Permissions.load(tmp_path / "pipe", lambda: 0.0)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(BadFile, match="not UTF-8"):
        Permissions.load(tmp_path / "bytes", lambda: 0.0)


# Bad input 63
def test_a_broken_file_leaves_in_force_what_was(tmp_path: Path) -> None:
    path = tmp_path / "permissions.toml"
    path.write_text(FILE)
    permissions = Permissions.load(path, lambda: 0.0)
    path.write_text("[[alow]]")
    with pytest.raises(BadFile):
        permissions.reload()
    assert permissions.allows("alice", "a.one", Right.READ)
    path.write_text(FILE.replace('"alice"', '"alina"'))
    permissions.reload()
    assert not permissions.allows("alice", "a.one", Right.READ)
    assert permissions.allows("alina", "a.one", Right.READ)
