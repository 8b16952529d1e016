"""Bad names, bad values, too much of everything: refused in words, and the node is unharmed."""

from __future__ import annotations

import contextlib
import itertools
import re
import zlib
from collections.abc import Iterator
from typing import Any

import pytest

from idl import system
from idl.cos import EventChannel
from idl.mq import (
    DigestMismatch,
    Mq_Fifo,
    Mq_Standard,
    QueueEmpty,
    QueueExists,
    QueueFull,
    QueueInUse,
    QueueNotFound,
    mqAttribute,
    mqBatch,
    mqHeader,
    mqQueueSettings,
    mqTimestamp,
)
from idl.wire import UNITS_MAX
from mqserver.permissions import OPERATION_RIGHTS
from mqserver.queues import ATTRIBUTES_LENGTH_MAX, ATTRIBUTES_MAX
from tests.security.attacker import call
from tests.security.guarded_node import (
    ALL,
    ALONE,
    MESSAGE_BYTES_MAX,
    SMALL,
    GuardedNode,
    batch,
)

HEADER = mqHeader(0, 0, mqTimestamp(0, 0), "")
PLAIN = mqQueueSettings(True, False, 0, 0)
BAD_NAMES = (
    "",
    ".",
    "..",
    "../x",
    "..%2fx",
    "a/b",
    "a\\b",
    "x" * 129,
    "x" * 300,
    "a b",
    "a\r\nb",
    "a\0b",
    "a\x1b[2Jb",
    "a\u202eb",
    "ä",
    "queue'; DROP TABLE message; --",
    '"',
    "%s%n{0}",
    "$(id)",
    "*",
)
NULL = (-1, 0, b"")
# Whatever only the inside of a server knows.
INTERNAL = re.compile(
    r"Traceback|\.py|File \"|line \d+, in|/work|/usr|/home|SELECT|sqlite|object at 0x|site-packages"
)


@pytest.fixture(scope="module")
def guarded() -> Iterator[GuardedNode]:
    with contextlib.closing(GuardedNode()) as made:
        yield made


# --- Names ---------------------------------------------------------------------------------------


# S24, S25, bad input 53
@pytest.mark.parametrize("name", BAD_NAMES, ids=range(len(BAD_NAMES)))
def test_a_bad_name_makes_no_queue_and_no_channel(guarded: GuardedNode, name: str) -> None:
    before = [info.name for info in guarded.node.storage.queues()]
    with guarded.unharmed(), guarded.wire("any") as wire:
        tried = [
            ("node", "putMany", ((NULL, "", None), 0, name, ((b"x",), (0,), (), (), (), (), ()))),
            ("node", "getMany", ((NULL, "", None), 0, name, (0, 0, ()), 1, 0)),
            ("node", "browse", (name, (0, 0, ()), "", 1)),
            ("node", "countMessages", (name,)),
            ("node", "reserve", ("c", name, (0, 0, ()), 0, 1, 0)),
            ("admin", "createQueue", (name, (True, False, 0, 0))),
            ("admin", "deleteQueue", (name,)),
            ("admin", "getQueue", (name,)),
            (f"fifo/{name}", "mqGetNext", (None,)),
            (f"standard/{name}", "mqPut", (None, (0, 0, (0, 0), ""), (), b"x")),
        ]
        if set(name) != {"."}:
            # Channels are in no file and no table: a name of dots does no harm there.
            tried.append((f"channel/{name}", "for_consumers", ()))
            tried.append(("fifo/a.one", "mqStartNotify", (name, 0)))
        for seq, (target, operation, arguments) in enumerate(tried, start=1):
            reply = wire.answer(call(seq, target, operation, *arguments))
            refusals = ("BAD_PARAM", "OBJECT_NOT_EXIST", "NO_PERMISSION", "IDL:QueueNotFound")
            assert reply.exception in refusals, (operation, reply.exception)
            assert "\n" not in repr(reply.plain)
    after = [info.name for info in guarded.node.storage.queues() if info.name != "a.honest"]
    assert after == [info for info in before if info != "a.honest"]


# S25
def test_names_that_only_look_odd_are_names(guarded: GuardedNode) -> None:
    for name in ("CON", "x" * 128, "-", "_", "a..b", "0"):
        assert len(guarded.as_node("any").putMany(ALONE, 0, name, batch(b"x"))) == 1
        assert guarded.as_admin("any").purgeQueue(name) == 1
        guarded.as_admin("any").deleteQueue(name)


# Bad input 54
def test_queues_are_made_once_and_not_lost_by_accident(guarded: GuardedNode) -> None:
    admin = guarded.as_admin("any")
    admin.createQueue("b.made", PLAIN)
    with pytest.raises(QueueExists):
        admin.createQueue("b.made", PLAIN)
    guarded.as_node("any").putMany(ALONE, 0, "b.made", batch(b"x"))
    with pytest.raises(QueueInUse):
        admin.deleteQueue("b.made")
    admin.purgeQueue("b.made")
    admin.deleteQueue("b.made")
    with pytest.raises(QueueNotFound):
        admin.deleteQueue("b.made")


# --- Values --------------------------------------------------------------------------------------


# S26, bad inputs 47 and 48
def test_a_message_may_be_empty_or_as_large_as_allowed_and_not_a_byte_larger(
    guarded: GuardedNode,
) -> None:
    node = guarded.as_node("any")
    largest = bytes(MESSAGE_BYTES_MAX)
    with guarded.unharmed():
        node.putMany(ALONE, 0, "b.size", batch(b"", largest))
        with pytest.raises(system.IMP_LIMIT):
            node.putMany(ALONE, 0, "b.size", batch(largest + b"x"))
        fifo = guarded.orb("any").proxy(guarded.reference("fifo/b.size"), Mq_Fifo)
        with pytest.raises(system.IMP_LIMIT):
            fifo.mqPut(None, HEADER, (), largest + b"x")
        taken = node.getMany(ALONE, 0, "b.size", ALL, 5, 0)
        assert [len(payload) for payload in taken.messages.payloads] == [0, MESSAGE_BYTES_MAX]


# Bad input 59
def test_a_message_that_was_damaged_on_the_way_is_refused(guarded: GuardedNode) -> None:
    good = batch(b"good").digests[0]
    damaged = mqBatch((b"good", b"damaged"), (good, 1), (), (), (), (), ())
    with guarded.unharmed(), pytest.raises(DigestMismatch) as refused:
        guarded.as_node("any").putMany(ALONE, 0, "b.damaged", damaged)
    assert refused.value.position == 1


# Bad inputs 51, 52 and 55
@pytest.mark.parametrize(
    ("operation", "arguments"),
    [
        ("putMany", ((NULL, "", None), 0, "b.x", ((b"x", b"y"), (1,), (), (), (), (), ()))),
        ("putMany", ((NULL, "", None), 0, "b.x", ((b"x",), (0,), (70000,), (), (), (), ()))),
        ("putMany", ((NULL, "", None), 0, "b.x", ((b"x",), (0,), (-1,), (), (), (), ()))),
        ("putMany", ((NULL, "", None), 0, "b.x", ((b"x",), (0,), (1, 2), (), (), (), ()))),
        ("putMany", ((NULL, "", None), 0, "b.x", (("text",), (0,), (), (), (), (), ()))),
        ("putMany", ((NULL, "", None), 0, "b.x", ((b"x",), (2**40,), (), (), (), (), ()))),
        ("putMany", ((NULL, "", None), -1, "b.x", ((), (), (), (), (), (), ()))),
        ("putMany", ((NULL, "", None), 0, 17, ((), (), (), (), (), (), ()))),
        ("getMany", ((NULL, "", None), 0, "b.x", (0, 0, ()), -1, 0)),
        ("getMany", ((NULL, "", None), 0, "b.x", (0, 0, ()), 1, -1)),
        ("getMany", ((NULL, "", None), 0, "b.x", (0, 0, ()), 1, 2**32)),
        ("getMany", ((NULL, "", None), 0, "b.x", (0, 0, ()), 1, 1.5)),
        ("getMany", ((NULL, "", None), 0, "b.x", (0, 0, ()), float("nan"), 0)),
        ("getMany", ((NULL, "", None), 0, "b.x", (0, 0, (("k", "v"), 3)), 1, 0)),
        ("getKeys", ((NULL, "", None), 0, "b.x", ("x" * 16,))),
        ("browse", ("b.x", (0, 0, ()), "not a key", 1)),
        ("pushDown", (((1, 2, b""), "n1", None), 1, (), 0)),
        ("pushDown", (((-1, 0, b""), "n1", None), 1, (), 7)),
        ("prepareBranch", (((-1, 0, b""), "", None), 0)),
        ("prepareBranch", (((1, 0, b"x" * 100_000), "n1", None), 0)),
        ("fetchReserved", ("c" * 129, 1, 0, 1)),
        ("fetchReserved", ("c", 1, -1, 1)),
        ("getVersion", ("x" * 129,)),
    ],
)
def test_values_that_the_interface_does_not_know_are_refused(
    guarded: GuardedNode, operation: str, arguments: tuple[Any, ...]
) -> None:
    with guarded.unharmed(), guarded.wire("any") as wire:
        reply = wire.answer(call(1, "node", operation, *arguments))
        assert reply.exception in ("BAD_PARAM", "INVALID_TRANSACTION"), reply.plain


# Bad inputs 49 and 51
def test_attributes_hold_any_text_and_come_back_as_they_were(guarded: GuardedNode) -> None:
    standard = guarded.orb("any").proxy(guarded.reference("standard/b.text"), Mq_Standard)
    odd = ("\U0001f600", "a\r\nb", "\u202e", "'; --", "%s{0}", "\x1b[2J", "x" * 10_000)
    attribs = tuple(mqAttribute(text, text) for text in odd)
    many = tuple(mqAttribute(str(number), "v") for number in range(5000))
    with guarded.unharmed():
        key = standard.mqPut(None, HEADER, attribs, b"x")
        assert standard.mqGetAttribList(key) == attribs
        second = standard.mqPut(None, HEADER, many, b"x")
        assert standard.mqGetAttribList(second) == many
        assert standard.mqRemove(key)
        assert standard.mqRemove(second)
        assert not standard.mqRemove(second)
        assert not standard.mqRemove("nonsense")


# Bad inputs 48 and 51
def test_too_many_or_too_long_attributes_are_refused_with_the_limit(guarded: GuardedNode) -> None:
    standard = guarded.orb("any").proxy(guarded.reference("standard/b.text"), Mq_Standard)
    node = guarded.as_node("any")
    cases = {
        ATTRIBUTES_MAX: (mqAttribute("", ""),) * (ATTRIBUTES_MAX + 1),
        ATTRIBUTES_LENGTH_MAX: (mqAttribute("a", "b" * ATTRIBUTES_LENGTH_MAX),),
    }
    with guarded.unharmed():
        for limit, attribs in cases.items():
            one = mqBatch((b"x",), (zlib.crc32(b"x"),), (), (), (), (), (attribs,))
            with pytest.raises(system.IMP_LIMIT, match=str(limit)):
                standard.mqPut(None, HEADER, attribs, b"x")
            with pytest.raises(system.IMP_LIMIT, match=str(limit)) as refused:
                node.putMany(ALONE, 0, "b.text", one)
            assert refused.value.completed is system.Completion.NO
    assert node.countMessages("b.text") == 0


# Bad inputs 51 and 56
def test_a_call_of_too_many_values_is_refused_as_such_and_not_as_damaged(
    guarded: GuardedNode,
) -> None:
    wide = (mqAttribute("", ""),) * ATTRIBUTES_MAX
    count = UNITS_MAX // (10 * ATTRIBUTES_MAX) + 1
    payloads, digests = (b"x",) * count, (zlib.crc32(b"x"),) * count
    node = guarded.as_node("any")
    with guarded.unharmed(), pytest.raises(system.IMP_LIMIT, match="send less") as refused:
        node.putMany(
            ALONE, 0, "b.text", mqBatch(payloads, digests, (), (), (), (), (wide,) * count)
        )
    assert refused.value.completed is system.Completion.NO
    assert node.countMessages("b.text") == 0


# Bad input 55
def test_a_get_that_does_not_wait_says_at_once_that_there_is_nothing(guarded: GuardedNode) -> None:
    node = guarded.as_node("any")
    assert node.getMany(ALONE, 0, "b.empty", ALL, 2**32 - 1, 0).keys == ()
    fifo = guarded.orb("any").proxy(guarded.reference("fifo/b.empty"), Mq_Fifo)
    with pytest.raises(QueueEmpty):
        fifo.mqGetNext(None)


# S21
def test_no_error_tells_what_is_inside(guarded: GuardedNode) -> None:
    nonsense = ("x", -1, None, b"\xff", (), ("PYRO:x@127.0.0.1:1", 3), 2**63)
    families = {name: f"{name}/b.x" for name in ("standard", "fifo", "channel")}
    told: set[str] = set()
    with guarded.unharmed(), guarded.wire("any") as wire:
        seq = 0
        for family, rules in OPERATION_RIGHTS.items():
            for operation, count in itertools.product(rules, range(4)):
                for value in nonsense:
                    seq += 1
                    name = families.get(family, family)
                    reply = wire.answer(call(seq, name, operation, *[value] * count))
                    told.add(repr(reply.plain))
                    assert reply.exception != "UNKNOWN", (family, operation, value, count)
    assert not [text for text in told if INTERNAL.search(text)]


# --- Too much ------------------------------------------------------------------------------------


# S27
def test_open_transactions_are_limited_for_each_caller(guarded: GuardedNode) -> None:
    node = guarded.as_node("alice")
    branches = [guarded.branch() for _ in range(SMALL.branches_per_principal_max)]
    with guarded.unharmed():
        for branch in branches:
            node.putMany(branch, 1, "a.many", batch(b"x"))
        with pytest.raises(system.IMP_LIMIT) as refused:
            node.putMany(guarded.branch(), 1, "a.many", batch(b"x"))
        assert str(SMALL.branches_per_principal_max) in refused.value.reason
        other = guarded.branch()
        guarded.as_node("bob").putMany(other, 1, "b.many", batch(b"x"))
        guarded.as_node("bob").rollbackBranch(other)
        for branch in branches:
            node.rollbackBranch(branch)
        again = guarded.branch()
        node.putMany(again, 1, "a.many", batch(b"x"))
        node.rollbackBranch(again)


# Bad input 56
def test_a_transaction_is_limited_before_memory_is_gone(guarded: GuardedNode) -> None:
    node = guarded.as_node("alice")
    with guarded.unharmed():
        many, large = guarded.branch(), guarded.branch()
        with pytest.raises(system.IMP_LIMIT):
            node.putMany(many, 1, "a.many", batch(*[b"x"] * (SMALL.branch_messages_max + 1)))
        for number in itertools.count(1):
            try:
                node.putMany(large, number, "a.many", batch(bytes(MESSAGE_BYTES_MAX)))
            except system.IMP_LIMIT:
                break
            assert number <= SMALL.branch_bytes_max // MESSAGE_BYTES_MAX
        for branch in (many, large):
            node.rollbackBranch(branch)
    assert node.countMessages("a.many") == 0


# S27
def test_queues_are_limited(guarded: GuardedNode) -> None:
    node, admin = guarded.as_node("any"), guarded.as_admin("any")
    made = []

    def make_many() -> None:
        for number in range(SMALL.queues_max + 1):
            node.putMany(ALONE, 0, f"b.{number}", batch(b"x"))
            made.append(f"b.{number}")

    with guarded.unharmed(), pytest.raises(system.IMP_LIMIT):
        make_many()
    with pytest.raises(system.IMP_LIMIT):
        admin.createQueue("b.too.many", PLAIN)
    for queue in made:
        admin.purgeQueue(queue)
        admin.deleteQueue(queue)


# S27
def test_a_full_queue_says_so_and_takes_more_when_there_is_room(guarded: GuardedNode) -> None:
    node, admin = guarded.as_node("any"), guarded.as_admin("any")
    admin.createQueue("b.full", mqQueueSettings(True, False, 2, 0))
    node.putMany(ALONE, 0, "b.full", batch(b"1", b"2"))
    with guarded.unharmed(), pytest.raises(QueueFull) as refused:
        node.putMany(ALONE, 0, "b.full", batch(b"3"))
    assert (refused.value.queue, refused.value.limit) == ("b.full", 2)
    node.getMany(ALONE, 0, "b.full", ALL, 1, 0)
    node.putMany(ALONE, 0, "b.full", batch(b"3"))
    assert admin.purgeQueue("b.full") == 2


# S27
def test_channels_are_limited_for_each_caller(guarded: GuardedNode) -> None:
    def make_many() -> None:
        for number in range(2000):
            reference = guarded.reference(f"channel/a.channel.{number}")
            guarded.orb("alice").proxy(reference, EventChannel).for_consumers()

    with guarded.unharmed(), pytest.raises(system.IMP_LIMIT):
        make_many()
    reference = guarded.reference("channel/b.channel")
    guarded.orb("bob").proxy(reference, EventChannel).for_consumers()
