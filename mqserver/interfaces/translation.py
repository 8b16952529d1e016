"""Between the wire and a node: messages in columns and one by one, and what went wrong, in words.

`ERRORS` is the table of errors: what may happen inside a node, and what the caller is told. Where
an operation does not declare that exception, it is told a standard one. Pure.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Sequence
from threading import get_ident
from typing import Any, TypeVar, cast

from idl import mq, system
from idl.checksums import MUCH_BYTES, crc32, crc32_of_each, crc32_of_little
from idl.cos import Status
from idl.mapping import UserException, fields_of, operations_of
from idl.mq import (
    USEC_PER_SEC,
    DigestMismatch,
    mqAttribList,
    mqAttribute,
    mqBatch,
    mqHeader,
    mqKeyList,
    mqSelection,
    mqTaken,
    mqTimestamp,
)
from mqserver import errors
from mqserver.queues import ATTRIBUTES_LENGTH_MAX, ATTRIBUTES_MAX, KEY_DIGITS, key_text, weight
from mqserver.storage.contract import (
    EVERYTHING,
    Attributes,
    Message,
    MessageColumns,
    NewMessage,
    Selection,
)
from mqserver.transactions.requests import status_of

log = logging.getLogger("oncemq.node")

F = TypeVar("F", bound=Callable[..., Any])

UNSIGNED_LONG_MAX = 2**32 - 1
NOWHEN = mqTimestamp(0, 0)
# From so many messages on they are passed on in columns, as they came.
COLUMNS_MIN = 100
_LAST_DIGITS = 3
_ENDINGS = [f"{number:0{_LAST_DIGITS}d}" for number in range(10**_LAST_DIGITS)]

_new = object.__new__
_new_tuple = tuple.__new__


def _setters(kind: type) -> list[Callable[[object, object], None]]:
    return [getattr(kind, name).__set__ for name, _ in fields_of(kind)]


# How a field is set that a struct would check first, and refuse to set anew.
_set_keys, _set_messages = _setters(mqTaken)
(
    _set_payloads,
    _set_digests,
    _set_priorities,
    _set_groups,
    _set_times,
    _set_senders,
    _set_attribs,
) = _setters(mqBatch)
_set_seconds, _set_microseconds = _setters(mqTimestamp)

# --- What comes in -------------------------------------------------------------------------------


def new_messages(
    batch: mqBatch, now_us: int, sender: str, message_bytes_max: int, position: int = 0
) -> Sequence[NewMessage]:
    """The messages of a batch, each with the digest that came with it, which is checked."""
    payloads, digests = batch.payloads, batch.digests
    if len(payloads) == 1:
        size = len(payloads[0])
        sum_up = crc32_of_little if size < MUCH_BYTES else crc32
        if size <= message_bytes_max and sum_up(payloads[0]) == digests[0]:
            return [_only_message(batch, now_us, sender)]
    if not payloads:
        return []
    is_whole = crc32_of_each(payloads) == digests
    if not is_whole or max(map(len, payloads)) > message_bytes_max:
        _refuse(batch, message_bytes_max, position)
    columns = MessageColumns(
        payloads,
        digests,
        batch.priorities or (0,),
        batch.groups or (0,),
        [_microseconds(time) for time in batch.times] or (now_us,),
        batch.senders or (sender,),
        [_pairs(attribs) for attribs in batch.attribs] or ((),),
    )
    return columns if len(payloads) >= COLUMNS_MIN else list(columns)


def _refuse(batch: mqBatch, message_bytes_max: int, position: int) -> None:
    """Raises for the first message that is wrong."""
    for payload, digest in zip(batch.payloads, batch.digests):  # noqa: B905
        if crc32(payload) != digest:
            raise DigestMismatch(position)
        if len(payload) > message_bytes_max:
            raise too_large(len(payload), message_bytes_max)
        position += 1


def _only_message(batch: mqBatch, now_us: int, sender: str) -> NewMessage:
    # Its own way to be made takes twice as long.
    return _new_tuple(
        NewMessage,
        (
            batch.payloads[0],
            batch.digests[0],
            batch.priorities[0] if batch.priorities else 0,
            batch.groups[0] if batch.groups else 0,
            _microseconds(batch.times[0]) if batch.times else now_us,
            batch.senders[0] if batch.senders else sender,
            _pairs(batch.attribs[0]) if batch.attribs else (),
        ),
    )


def new_message(
    header: mqHeader, attrib: mqAttribList, data: bytes, now_us: int, sender: str
) -> NewMessage:
    """One message with its header; the queue sets the time."""
    return NewMessage(
        data,
        crc32(data),
        header.priority,
        header.groupID,
        now_us,
        header.senderID or sender,
        _pairs(attrib),
    )


def selection_of(wanted: mqSelection) -> Selection:
    """Which messages are meant."""
    if not wanted.groupID and not wanted.priorityMin and not wanted.attribs:
        return EVERYTHING
    return Selection(wanted.groupID, wanted.priorityMin, _pairs(wanted.attribs))


def too_large(size: int, allowed: int) -> errors.LimitExceeded:
    """A payload has more bytes than the node allows."""
    told = f"a message of {size} bytes; {allowed} are allowed by limits.message_bytes"
    return errors.LimitExceeded(told)


def _pairs(attribs: mqAttribList) -> Attributes:
    if not attribs:
        return ()
    if len(attribs) > ATTRIBUTES_MAX:
        told = f"{len(attribs)} attributes of one message; {ATTRIBUTES_MAX} are allowed"
        raise errors.LimitExceeded(told)
    length = sum([len(pair.key) + len(pair.value) for pair in attribs])
    if length > ATTRIBUTES_LENGTH_MAX:
        told = f"{length} characters in the attributes of one message; {ATTRIBUTES_LENGTH_MAX} are"
        raise errors.LimitExceeded(f"{told} allowed")
    return tuple([(pair.key, pair.value) for pair in attribs])


def _microseconds(time: mqTimestamp) -> int:
    return time.mq_sec * USEC_PER_SEC + time.mq_usec


# --- What goes out -------------------------------------------------------------------------------


def key_texts(keys: Iterable[int]) -> mqKeyList:
    """Keys as clients know them; see `key_text`."""
    if type(keys) is range:
        if len(keys) == 1:
            return (key_text(keys.start),)
        if len(keys) > 1 and keys.step == 1:
            return tuple(_texts_of_range(keys))
    told = tuple(keys)
    if len(told) > 1 and told == tuple(together := range(told[0], told[0] + len(told))):
        # One behind the other, as they were put.
        return tuple(_texts_of_range(together))
    return tuple([f"{key:0{KEY_DIGITS}d}" for key in told])


def _texts_of_range(keys: range) -> list[str]:
    # All keys of a thousand begin alike: to put two texts together takes a third of the time.
    found: list[str] = []
    size = len(_ENDINGS)
    for thousand in range(keys.start // size, (keys.stop - 1) // size + 1):
        start = max(keys.start - thousand * size, 0)
        beginning = f"{thousand:0{KEY_DIGITS - _LAST_DIGITS}d}"
        endings = _ENDINGS[start : keys.stop - thousand * size]
        found += [beginning + ending for ending in endings]
    return found


def taken_of(messages: Sequence[Message]) -> mqTaken:
    """Messages in columns; what is the default for all is left out."""
    if not messages:
        return NOTHING_TAKEN
    if len(messages) == 1:
        return _only_taken(*messages[0])
    keys, payloads, digests, priorities, groups, times, senders, attributes = zip(
        *messages, strict=True
    )
    return _taken(
        key_texts(keys),
        payloads,
        digests,
        priorities if any(priorities) else (),
        groups if any(groups) else (),
        _timestamps(times),
        senders if any(senders) else (),
        tuple([_attribs(pairs) for pairs in attributes]) if any(attributes) else (),
    )


def _only_taken(
    key: int,
    payload: bytes,
    digest: int,
    priority: int,
    group: int,
    time_us: int,
    sender: str,
    attributes: Attributes,
) -> mqTaken:
    return _taken(
        (key_text(key),),
        (payload,),
        (digest,),
        (priority,) if priority else (),
        (group,) if group else (),
        (_timestamp(time_us),),
        (sender,) if sender else (),
        (_attribs(attributes),) if attributes else (),
    )


def _taken(
    keys: mqKeyList,
    payloads: tuple[bytes, ...],
    digests: tuple[int, ...],
    priorities: tuple[int, ...],
    groups: tuple[int, ...],
    times: tuple[mqTimestamp, ...],
    senders: tuple[str, ...],
    attribs: tuple[mqAttribList, ...],
) -> mqTaken:
    """Made of values that were checked when they came in, so that they are not checked again.

    That is most of what a get costs, and whoever reads the answer checks it all the same.
    """
    batch = _new(mqBatch)
    _set_payloads(batch, payloads)
    _set_digests(batch, digests)
    _set_priorities(batch, priorities)
    _set_groups(batch, groups)
    _set_times(batch, times)
    _set_senders(batch, senders)
    _set_attribs(batch, attribs)
    made: mqTaken = _new(mqTaken)
    _set_keys(made, keys)
    _set_messages(made, batch)
    return made


NOTHING_TAKEN = mqTaken((), mqBatch((), (), (), (), (), (), ()))


def answer_bytes(messages: Sequence[Message]) -> int:
    """About how many bytes an answer with these messages has."""
    if len(messages) == 1:
        return weight(messages[0].payload, messages[0].attributes)
    return sum([weight(message.payload, message.attributes) for message in messages])


def header_of(message: Message) -> mqHeader:
    """The header of one message."""
    time = _timestamp(message.time_us)
    return mqHeader(message.priority, message.group, time, message.sender)


def attribs_of(message: Message) -> mqAttribList:
    """The attributes of one message."""
    return _attribs(message.attributes)


def _attribs(pairs: Attributes) -> mqAttribList:
    return tuple([mqAttribute(key, value) for key, value in pairs])


def _timestamps(times: Sequence[int]) -> tuple[mqTimestamp, ...]:
    # Messages of one batch have the same time.
    last, made = -1, NOWHEN
    result = []
    for time_us in times:
        if time_us != last:
            last, made = time_us, _timestamp(time_us)
        result.append(made)
    return tuple(result)


def _timestamp(time_us: int) -> mqTimestamp:
    seconds, rest = divmod(time_us, USEC_PER_SEC)
    if not 0 <= seconds <= UNSIGNED_LONG_MAX:
        seconds = min(max(seconds, 0), UNSIGNED_LONG_MAX)
    made: mqTimestamp = _new(mqTimestamp)
    _set_seconds(made, seconds)
    _set_microseconds(made, rest)
    return made


# --- What went wrong -----------------------------------------------------------------------------


def _first(error: errors.MqError, otherwise: object = "") -> Any:
    return error.args[0] if error.args else otherwise


def _number(error: errors.MqError) -> int:
    return int(error.args[1]) if len(error.args) > 1 else 0


def _key(error: errors.MqError) -> str:
    key = error.args[1] if len(error.args) > 1 else ""
    return key_text(key) if isinstance(key, int) else str(key)[: mq.KEY_LENGTH]


Told = UserException | system.SystemException
_NO, _MAYBE = system.Completion.NO, system.Completion.MAYBE

# What happened here, what the caller is told, and what where the operation does not declare that.
ERRORS: dict[type[errors.MqError], tuple[Callable[[Any], Told], Callable[[Any], Told]]] = {
    errors.QueueDisabled: (
        lambda e: mq.QueueDisabled(_first(e)),
        lambda e: system.TRANSIENT(str(e)),
    ),
    errors.QueueNotFound: (
        lambda e: mq.QueueNotFound(_first(e)),
        lambda e: system.OBJECT_NOT_EXIST(str(e)),
    ),
    errors.QueueFull: (
        lambda e: mq.QueueFull(_first(e), _number(e)),
        lambda e: system.IMP_LIMIT(str(e)),
    ),
    errors.QueueExists: (
        lambda e: mq.QueueExists(_first(e)),
        lambda e: system.BAD_PARAM(str(e)),
    ),
    errors.QueueInUse: (
        lambda e: mq.QueueInUse(_first(e), 0),
        lambda e: system.BAD_PARAM(str(e)),
    ),
    errors.MessageNotFound: (
        lambda e: mq.MessageNotFound(_first(e), _key(e)),
        lambda e: system.OBJECT_NOT_EXIST(str(e)),
    ),
    errors.LockTimeout: (
        lambda e: mq.LockTimeout(_first(e), _key(e)),
        lambda e: system.TRANSIENT(str(e)),
    ),
    errors.Deadlock: (
        lambda e: mq.Deadlock(str(_first(e))),
        lambda e: system.TRANSACTION_ROLLEDBACK(str(e), system.Completion.YES),
    ),
    errors.BranchEnded: (
        lambda e: mq.BranchEnded(status_of(e)),
        lambda e: _over(e),
    ),
    errors.ReservationOutdated: (
        lambda e: mq.ReservationOutdated(_number(e)),
        lambda e: system.BAD_PARAM(str(e)),
    ),
    errors.ReservationNotFound: (
        lambda e: mq.ReservationNotFound(_number(e)),
        lambda e: system.BAD_PARAM(str(e)),
    ),
}
# What no operation declares.
_UNDECLARED: dict[type[errors.MqError], Callable[[Any], Told]] = {
    errors.LimitExceeded: lambda e: system.IMP_LIMIT(str(e), _NO),
    errors.ReservationError: lambda e: system.BAD_PARAM(str(e), _NO),
    errors.StorageFull: lambda e: system.IMP_LIMIT(_hidden(e), _NO),
    errors.StorageError: lambda e: system.INTERNAL(_hidden(e), _MAYBE),
    errors.MqError: lambda e: system.INTERNAL(_hidden(e), _MAYBE),
}


def _over(error: errors.BranchEnded) -> Told:
    status = status_of(error)
    if status is Status.ROLLED_BACK:
        return system.TRANSACTION_ROLLEDBACK(
            "the transaction was rolled back", system.Completion.YES
        )
    return system.INVALID_TRANSACTION("the transaction is being ended, and takes no more work")


def _hidden(error: errors.MqError) -> str:
    # Files and offsets are for the operator of the node, who finds them in its log.
    log.error("a call has failed: %s", error)
    return f"{type(error).__doc__} The node's log has the details."


def told(error: errors.MqError, declared: tuple[type[UserException], ...]) -> Told:
    """What the caller of an operation that declares these exceptions is told."""
    for kind in type(error).__mro__:
        if kind in ERRORS:
            as_declared, otherwise = ERRORS[kind]
            made = as_declared(error)
            return made if isinstance(made, declared) else otherwise(error)
        if kind in _UNDECLARED:
            return _UNDECLARED[kind](error)
    raise AssertionError(f"{type(error).__name__} has no row")


def translating(interface: type) -> Callable[[F], F]:
    """Of an operation of this interface: what went wrong inside is told in the wire's words.

    While it runs, its thread is among those that are running, in the servant's parts.
    """

    def decorate(function: F) -> F:
        declared = operations_of(interface)[function.__name__].raises

        # What comes is passed on as it is: to take the servant out and put it back takes longer.
        @functools.wraps(function)
        def translated(*arguments: Any) -> Any:
            running: list[int] = arguments[0]._parts.running
            thread = get_ident()
            running.append(thread)
            try:
                return function(*arguments)
            except errors.MqError as error:
                raise told(error, declared) from error
            finally:
                running.remove(thread)

        return cast(F, translated)

    return decorate
