"""Values are checked when they are made, and the message says what was wrong with which field."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

from idl import cos, mq
from idl.mapping import ANY_DEPTH_MAX, Anything, InvalidValue, operations_of, repository_id

# The wrong types are given on purpose.
NOT_AN_INT: Any = 1.0
NOT_A_STRUCT: Any = (1, 2)
NOT_TEXT: Any = b"x"
NOT_BYTES: Any = "b"
NOT_A_TUPLE: Any = [b"a"]

TIME = mq.mqTimestamp(1, 2)
NOBODY = cos.otid_t(cos.NULL_FORMAT_ID, 0, b"")
NOTHING = mq.mqBatch((), (), (), (), (), (), ())


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: mq.mqHeader(65536, 0, TIME, ""), "priority: 65536 is not between 0 and 65535"),
        (lambda: mq.mqHeader(-1, 0, TIME, ""), "priority: -1 is not between 0 and 65535"),
        (lambda: mq.mqHeader(0, NOT_AN_INT, TIME, ""), "groupID: 1.0 is not an int"),
        (lambda: mq.mqHeader(True, 0, TIME, ""), "priority: True is not an int"),
        (lambda: mq.mqHeader(0, 0, NOT_A_STRUCT, ""), "time: (1, 2) is not a mqTimestamp"),
        (lambda: mq.mqHeader(0, 0, TIME, "x" * 256), "has 256 characters, 255 are allowed"),
        (lambda: mq.mqHeader(0, 0, TIME, NOT_TEXT), "senderID: b'x' is not a str"),
        (lambda: mq.mqHeader(0, 0, TIME, "\ud800"), "has a lone surrogate"),
        (lambda: mq.mqAttribute("a\0b", ""), "key: 'a\\x00b' has a NUL character"),
        (lambda: mq.mqTimestamp(-1, 0), "mq_sec: -1 is not between 0 and"),
        (lambda: mq.mqTimestamp(0, 1_000_000), "mq_usec: 1000000 is a second or more"),
        (lambda: cos.otid_t(0, 3, b"ab"), "bqual_length: 3 does not fit the tid"),
        (lambda: cos.otid_t(0, 0, b"x" * 129), "tid: 129 bytes, 128 are allowed"),
        (lambda: cos.otid_t(2**31, 0, b""), "formatID: 2147483648 is not between"),
        (lambda: mq.MessageNotFound("q", "k" * 16), "key: 'kkkkkkkkkkkkkkkk' has 16 characters"),
        (lambda: mq.mqTaken(("k",), NOTHING), "1 keys for the messages"),
        (lambda: mq.mqBatch((b"a",), (), (), (), (), (), ()), "digests: 0 for 1 payloads"),
        (
            lambda: mq.mqBatch((b"a", b"b"), (1, 2), (7,), (), (), (), ()),
            "priorities: 1 values for 2 payloads",
        ),
        (
            lambda: mq.mqBatch((b"a", NOT_BYTES), (1, 2), (), (), (), (), ()),
            "payloads[1]: 'b' is not a bytes",
        ),
        (
            lambda: mq.mqBatch((b"a", b"b"), (1, 2), (1, 70000), (), (), (), ()),
            "priorities[1]: 70000 is not between",
        ),
        (
            lambda: mq.mqBatch(NOT_A_TUPLE, (1,), (), (), (), (), ()),
            "payloads: [b'a'] is not a tuple",
        ),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_its_place(
    make: Callable[[], object], text: str
) -> None:
    with pytest.raises(InvalidValue) as refused:
        make()
    assert text in str(refused.value)


@pytest.mark.parametrize(
    "value",
    [
        object(),
        {1: "a"},
        {"a": {1, 2}},
        2**64,
        -(2**63) - 1,
        [1],
        (1, "\ud800"),
        {"a\0": 1},
    ],
)
def test_an_any_holds_plain_values_only(value: object) -> None:
    with pytest.raises(InvalidValue):
        Anything().check(value, "data")


def test_an_any_is_nested_to_its_limit_and_no_deeper() -> None:
    value: object = 1
    for _ in range(ANY_DEPTH_MAX - 1):
        value = (value,)
    Anything().check(value, "data")
    with pytest.raises(InvalidValue, match="nested deeper than 16 levels"):
        Anything().check((value,), "data")


def test_a_payload_is_not_written_out_in_an_error() -> None:
    with pytest.raises(InvalidValue) as refused:
        mq.mqAttribute("k", b"secret" * 1_000_000)  # type: ignore[arg-type]
    assert len(str(refused.value)) < 200


def test_values_are_frozen_and_compare_by_content() -> None:
    header = mq.mqHeader(1, 2, TIME, "me")
    assert header == mq.mqHeader(1, 2, mq.mqTimestamp(1, 2), "me")
    assert len({header, mq.mqHeader(1, 2, TIME, "me")}) == 1
    with pytest.raises(AttributeError):
        header.priority = 5  # type: ignore[misc]


def test_an_exception_says_what_happened_and_keeps_its_fields_when_pickled() -> None:
    raised = mq.QueueFull(queue="orders", limit=10)
    assert str(raised).startswith("The queue has reached its limit; nothing was put.")
    assert "queue='orders', limit=10" in str(raised)
    copy = pickle.loads(pickle.dumps(raised))
    assert copy == raised
    assert copy.limit == 10


def test_names_carry_their_scope() -> None:
    assert repository_id(cos.Inactive) == "IDL:CosTransactions/Inactive:1.0"
    assert repository_id(mq.QueueEmpty) == "IDL:Mq_Fifo/QueueEmpty:1.0"
    assert repository_id(mq.QueueFull) == "IDL:QueueFull:1.0"


def test_an_interface_has_the_operations_of_its_bases() -> None:
    assert list(operations_of(mq.Mq_Admin))[:4] == list(operations_of(mq.Mq_Service))
    assert "prepare" in operations_of(cos.SubtransactionAwareResource)


@pytest.mark.parametrize("name", ["orders", "a", "A.b-c_1", "x" * 128])
def test_a_queue_may_be_called_so(name: str) -> None:
    assert mq.check_queue_name(name) == name


@pytest.mark.parametrize(
    "name",
    ["", "..", ".", "a/b", "../x", "x" * 129, "a b", "a\n", "ä", "a'b", "%s", "a\0", "a\u202e"],
)
def test_a_queue_may_not_be_called_so(name: str) -> None:
    with pytest.raises(InvalidValue, match="letters, digits"):
        mq.check_queue_name(name)
