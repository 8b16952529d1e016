"""What went wrong inside a node, in the wire's words: every error has a row, none gets out raw."""

from __future__ import annotations

import pytest

from idl import mq, system
from idl.cos import Status
from idl.mapping import UserException, operations_of
from idl.mq import Mq_Admin, Mq_Fifo, Mq_Node, Mq_Standard, mqBatch, mqSelection
from mqserver import errors
from mqserver.interfaces.translation import (
    COLUMNS_MIN,
    key_texts,
    new_messages,
    selection_of,
    taken_of,
    told,
)
from mqserver.queues import key_text
from mqserver.storage.contract import EVERYTHING, Message, MessageColumns, Outcome
from mqserver.transactions.requests import ended
from tests.unit.mqserver.node_world import batch

EVERY_ERROR = [
    errors.LockTimeout("q", 7),
    errors.Deadlock("gives way"),
    errors.QueueNotFound("q"),
    errors.QueueExists("q"),
    errors.QueueInUse("q", "consumer"),
    errors.QueueDisabled("q"),
    errors.QueueFull("q", 9),
    errors.MessageNotFound("q", 7),
    errors.MessageNotFound("q", "no key, and much too long for one"),
    errors.LimitExceeded("much"),
    *[ended(b"branch", outcome) for outcome in Outcome],
    errors.ReservationError("c", "q"),
    errors.ReservationNotFound("c", 3),
    errors.ReservationOutdated("c", 3),
    errors.StorageLocked("dir"),
    errors.StorageFull("dir"),
    errors.StorageFailed("dir"),
    errors.WrongFormat("dir"),
    errors.Corruption("/secret/file", 17),
]
OPERATIONS = [
    operation
    for interface in (Mq_Standard, Mq_Fifo, Mq_Node, Mq_Admin)
    for operation in operations_of(interface).values()
]


def every_kind(kind: type[errors.MqError]) -> set[type[errors.MqError]]:
    """The error, and all that are such."""
    return {kind}.union(*(every_kind(each) for each in kind.__subclasses__()))


@pytest.mark.parametrize("error", EVERY_ERROR, ids=lambda error: type(error).__name__)
def test_each_error_becomes_what_the_operation_declares_or_a_standard_exception(
    error: errors.MqError,
) -> None:
    for operation in OPERATIONS:
        made = told(error, operation.raises)
        assert isinstance(made, system.SystemException) or type(made) in operation.raises
        assert "/secret" not in str(made)


def test_no_error_is_without_a_row() -> None:
    shown = {type(error) for error in EVERY_ERROR}
    families = {errors.MqError, errors.RetryableError, errors.QueueError, errors.StorageError}
    assert every_kind(errors.MqError) - families == shown


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (errors.LockTimeout("q", 7), mq.LockTimeout("q", "000000000000007")),
        (errors.QueueFull("q", 9), mq.QueueFull("q", 9)),
        (errors.MessageNotFound("q", "x" * 20), mq.MessageNotFound("q", "x" * 15)),
        (ended(b"b", Outcome.UNKNOWN), mq.BranchEnded(Status.ROLLED_BACK)),
        (ended(b"b", Outcome.PREPARED), mq.BranchEnded(Status.PREPARED)),
        (ended(b"b", Outcome.HEURISTICALLY_COMMITTED), mq.BranchEnded(Status.COMMITTED)),
        (errors.ReservationOutdated("c", 3), mq.ReservationOutdated(3)),
    ],
)
def test_what_is_told_has_the_values_of_what_happened(
    error: errors.MqError, expected: UserException
) -> None:
    assert told(error, (type(expected),)) == expected


def test_without_a_row_of_its_own_an_ended_branch_is_an_ended_transaction() -> None:
    assert isinstance(told(ended(b"b", Outcome.ROLLED_BACK), ()), system.TRANSACTION_ROLLEDBACK)
    assert isinstance(told(ended(b"b", Outcome.PREPARED), ()), system.INVALID_TRANSACTION)
    full = told(errors.StorageFull(), ())
    assert isinstance(full, system.IMP_LIMIT)
    assert full.completed is system.Completion.NO
    failed = told(errors.StorageFailed(), ())
    assert isinstance(failed, system.SystemException)
    assert failed.completed is system.Completion.MAYBE


# S21
def test_a_full_disk_is_told_without_its_place_which_stands_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    full = told(errors.StorageFull("/srv/mq/data", "write at 4014080"), ())
    assert isinstance(full, system.IMP_LIMIT)
    assert "make room" in full.reason
    assert "/srv" not in full.reason
    assert "/srv/mq/data, write at 4014080" in caplog.text


def test_messages_go_in_and_out_unchanged() -> None:
    whole = mqBatch(
        (b"x", b""),
        batch(b"x", b"").digests,
        (1, 65535),
        (2, 3),
        (mq.mqTimestamp(2**32 - 1, 999_999), mq.mqTimestamp(0, 0)),
        ("a", "é"),
        ((mq.mqAttribute("k", "v"),), ()),
    )
    new = new_messages(whole, 0, "sender", 100)
    kept = [Message(key, *each) for key, each in enumerate(new, 1)]
    assert taken_of(kept).messages == whole
    assert taken_of([]).keys == ()


def test_many_messages_stay_in_columns_and_are_the_same() -> None:
    payloads = [b"%d" % number for number in range(COLUMNS_MIN)]
    plain = batch(*payloads)
    new = new_messages(plain, 7, "sender", 100)
    assert isinstance(new, MessageColumns)
    assert list(new) == [new_messages(batch(each), 7, "sender", 100)[0] for each in payloads]
    assert new[3] == list(new)[3]
    assert new[2:4] == list(new)[2:4]


def test_the_first_wrong_message_of_many_is_named() -> None:
    whole = batch(*[b"%d" % number for number in range(COLUMNS_MIN)])
    digests = (*whole.digests[:5], 0, *whole.digests[6:])
    spoilt = mqBatch(whole.payloads, digests, (), (), (), (), ())
    with pytest.raises(mq.DigestMismatch) as refused:
        new_messages(spoilt, 0, "", 100, position=10)
    assert refused.value.args == mq.DigestMismatch(15).args
    with pytest.raises(errors.LimitExceeded):
        new_messages(whole, 0, "", 1)


@pytest.mark.parametrize("keys", [range(0), range(5, 6), range(998, 3002), range(7, 20, 2)])
def test_keys_of_a_range_are_written_like_any_others(keys: range) -> None:
    assert key_texts(keys) == tuple(key_text(key) for key in keys)


def test_a_selection_of_nothing_in_particular_is_everything() -> None:
    assert selection_of(mqSelection(0, 0, ())) is EVERYTHING
    picked = selection_of(mqSelection(1, 2, (mq.mqAttribute("k", "v"),)))
    assert (picked.group, picked.priority_min, picked.attributes) == (1, 2, (("k", "v"),))
