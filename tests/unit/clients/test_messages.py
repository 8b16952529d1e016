"""Messages and keys: what they admit, and what they say of what they do not."""

import pickle
from datetime import UTC, datetime
from typing import Any, cast
from zlib import crc32

import pytest

from clients.branches import HELD_BYTES_MAX, HELD_MESSAGES_MAX
from clients.errors import Damaged, KeyNotKnownYet, LimitExceeded
from clients.messages import (
    ATTRIBUTES_LENGTH_MAX,
    ATTRIBUTES_MAX,
    PAYLOAD_BYTES_MAX,
    Key,
    Message,
    batch_of,
    item_of,
    messages_of,
)
from idl import wire
from idl.mapping import InvalidValue, Structure
from idl.marshal import References, codec_of
from idl.mq import mqAttribute, mqBatch, mqTaken, mqTimestamp
from idl.orb.guard import Limits
from mqserver import queues

TEXT = "000000000000042"


def test_a_key_equals_its_text() -> None:
    key = Key(TEXT)
    assert str(key) == TEXT
    assert key == TEXT
    assert key == Key(TEXT)
    assert key != Key("000000000000043")
    assert key != 42
    assert {key: 1}[Key(TEXT)] == 1
    assert pickle.loads(pickle.dumps(key)) == key
    assert repr(key) == f"Key('{TEXT}')"


def test_a_key_that_is_not_known_says_why() -> None:
    key = Key.pending()
    assert not key.is_known
    assert key != Key.pending()
    with pytest.raises(KeyNotKnownYet, match="when the transaction is committed"):
        str(key)
    with pytest.raises(KeyNotKnownYet):
        hash(key)
    key.lose()
    with pytest.raises(KeyNotKnownYet, match="rolled back"):
        str(key)
    assert repr(key) == "Key(not known)"


def test_a_key_is_told_at_the_end() -> None:
    key = Key.pending()
    key.tell(TEXT)
    assert str(key) == TEXT
    untold = Key.pending()
    untold.tell("")
    for each in (untold, Key.untold()):
        with pytest.raises(KeyNotKnownYet, match="`browse` finds"):
            str(each)


def test_a_message_has_defaults_for_all_but_the_payload() -> None:
    message = Message(b"x")
    assert (message.priority, message.group, message.attributes, message.sender) == (0, 0, (), "")
    assert message.time is None
    assert message.key is None


def test_payloads_of_other_kinds_of_bytes_are_copied() -> None:
    assert Message(bytearray(b"x")).payload == b"x"  # type: ignore[arg-type]
    assert Message(memoryview(b"x")).payload == b"x"  # type: ignore[arg-type]
    assert item_of(bytearray(b"x")) == b"x"


def test_attributes_are_pairs_in_order_or_a_mapping() -> None:
    assert Message(b"", attributes=[["a", "1"], ("a", "2")]).attributes == (  # type: ignore[arg-type]
        ("a", "1"),
        ("a", "2"),
    )
    assert Message(b"", attributes={"a": "1"}).get("a") == "1"  # type: ignore[arg-type]
    assert Message(b"").get("a", "none") == "none"


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"payload": "text"}, "encode it"),
        ({"payload": 5}, "bytes, not int"),
        ({"payload": b"", "priority": -1}, "between 0 and 65535"),
        ({"payload": b"", "priority": True}, "an int, not bool"),
        ({"payload": b"", "group": 70000}, "between 0 and 65535"),
        ({"payload": b"", "attributes": "ab"}, "pairs of text"),
        ({"payload": b"", "attributes": ["ab"]}, "a pair of text"),
        ({"payload": b"", "attributes": [("a", 1)]}, "a str, not int"),
        ({"payload": b"", "attributes": [("a", "\0")]}, "NUL"),
        ({"payload": b"", "sender": "s" * 256}, "255"),
        ({"payload": b"", "sender": "\ud800"}, "UTF-8"),
    ],
)
def test_a_wrong_message_is_refused_when_it_is_made(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises((TypeError, ValueError), match=told):
        Message(**wrong)


def test_columns_that_say_nothing_are_left_out() -> None:
    plain = batch_of([b"a", b"b"], "")
    assert plain.payloads == (b"a", b"b")
    assert plain.digests == (crc32(b"a"), crc32(b"b"))
    assert [plain.priorities, plain.groups, plain.senders, plain.attribs, plain.times] == [()] * 5
    assert batch_of([b"a"], "me").senders == ("me",)
    mixed = batch_of([b"a", Message(b"b", priority=2, attributes=(("k", "v"),))], "me")
    assert mixed.priorities == (0, 2)
    assert mixed.groups == ()
    assert mixed.senders == ("me", "me")
    assert mixed.attribs == ((), (mqAttribute("k", "v"),))


def test_what_is_put_again_keeps_its_sender() -> None:
    assert batch_of([Message(b"", sender="first")], "me").senders == ("first",)


def test_messages_of_an_answer_are_whole() -> None:
    batch = mqBatch(
        (b"a", b"b"),
        (crc32(b"a"), crc32(b"b")),
        (1, 2),
        (),
        (mqTimestamp(0, 5), mqTimestamp(1, 0)),
        ("x", "y"),
        ((), (mqAttribute("k", "v"),)),
    )
    first, second = messages_of(mqTaken((TEXT, "000000000000043"), batch))
    assert first == Message(
        b"a", 1, 0, (), "x", datetime(1970, 1, 1, 0, 0, 0, 5, tzinfo=UTC), Key(TEXT)
    )
    assert second.attributes == (("k", "v"),)
    assert second.priority == 2


def test_a_payload_that_was_altered_is_reported() -> None:
    altered = mqBatch((b"a",), (crc32(b"b"),), (), (), (), (), ())
    with pytest.raises(Damaged, match="digest"):
        messages_of(mqTaken((TEXT,), altered))


def test_what_no_node_takes_is_refused_where_it_is_written() -> None:
    with pytest.raises(InvalidValue, match="10001 attributes, 10000 are allowed"):
        Message(b"", attributes=(("", ""),) * (ATTRIBUTES_MAX + 1))
    with pytest.raises(InvalidValue, match="65537 characters, 65536 are allowed"):
        Message(b"", attributes=(("a", "b" * ATTRIBUTES_LENGTH_MAX),))
    Message(b"", attributes=(("", ""),) * ATTRIBUTES_MAX)
    too_large = bytes(PAYLOAD_BYTES_MAX + 1)
    for payload in (too_large, bytearray(too_large), memoryview(too_large)):
        with pytest.raises(LimitExceeded, match="nothing was put"):
            Message(payload)  # type: ignore[arg-type]
        with pytest.raises(LimitExceeded, match="nothing was put"):
            item_of(payload)


def test_the_limits_of_a_message_are_those_of_a_node() -> None:
    assert (queues.ATTRIBUTES_MAX, queues.ATTRIBUTES_LENGTH_MAX) == (
        ATTRIBUTES_MAX,
        ATTRIBUTES_LENGTH_MAX,
    )
    assert Limits().message_bytes_max == PAYLOAD_BYTES_MAX


def test_a_call_holds_no_more_attributes_than_a_node_reads() -> None:
    """However attributes are spread over messages that are kept back until a call is full."""
    for attributes in (13, ATTRIBUTES_MAX):
        item = Message(b"", attributes=(("", ""),) * attributes)
        count = min(HELD_MESSAGES_MAX, HELD_BYTES_MAX // item.size + 1)
        wire.unpack(wire.pack(_written(batch_of([item] * count, ""))))


def _written(batch: mqBatch) -> object:
    codec = codec_of(Structure(mqBatch))
    assert codec.write is not None
    return codec.write(batch, cast(References, None))
