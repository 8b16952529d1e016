"""Messages and their keys, as people write and read them, and the columns in which they travel.

A message is checked when it is made, so that a wrong one fails where it was written and not later
in a commit. It knows neither queue nor transaction, and no transport. A message that was got goes
the fast way around the checks, since the node has made them: many thousands come in one answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import repeat
from typing import TypeVar

from clients import structs
from clients.errors import Damaged, KeyNotKnownYet, LimitExceeded
from idl.checksums import crc32, crc32_of_each
from idl.mapping import InvalidValue
from idl.mq import mqAttribute, mqBatch, mqHeader, mqTaken, mqTimestamp

NUMBER_MAX = 2**16 - 1
SENDER_LENGTH_MAX = 255
# What a node takes; it says so itself, but not before all of it was sent.
ATTRIBUTES_MAX = 10_000
ATTRIBUTES_LENGTH_MAX = 64 * 1024
# What fits into one call, whatever a node allows.
PAYLOAD_BYTES_MAX = 64 * 1024 * 1024
# What a message takes beside its payload, roughly: for the limits of a call. Attributes are many
# small values, of which a node reads only so many in one call.
OVERHEAD_BYTES = 32
ATTRIBUTE_BYTES = 64

T = TypeVar("T", int, str)

Attributes = tuple[tuple[str, str], ...]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNKNOWN = (
    "the key is not known yet: a put inside a transaction is given its key when the "
    "transaction is committed"
)
_new = object.__new__
_set = object.__setattr__
_NOT_PUT = "the transaction was rolled back: nothing was put, and there is no key"
_NOT_TOLD = (
    "the message was put, but the node was restarted before it could say the key: "
    "`browse` finds the message"
)


class Key:
    """Names one message of a queue; `str(key)` is its text.

    It equals its text, and another key with the same text. The key of a message that was put in a
    transaction is known once that is committed; asking earlier raises `KeyNotKnownYet`.
    """

    __slots__ = ("_text", "_why")

    def __init__(self, text: str, why: str = "") -> None:
        self._text = text
        self._why = why

    @classmethod
    def pending(cls) -> Key:
        """A key that is not known yet."""
        return cls("", _UNKNOWN)

    @classmethod
    def untold(cls) -> Key:
        """The key of a message that is in its queue, which nobody can tell any more."""
        return cls("", _NOT_TOLD)

    @property
    def is_known(self) -> bool:
        """Whether the text can be had."""
        return bool(self._text)

    def tell(self, text: str) -> None:
        """The message was put under this text; nothing, where the node could not say it."""
        self._text = text
        self._why = "" if text else _NOT_TOLD

    def lose(self) -> None:
        """The transaction was rolled back."""
        self._why = _NOT_PUT

    def __str__(self) -> str:
        if not self._text:
            raise KeyNotKnownYet(self._why)
        return self._text

    def __repr__(self) -> str:
        return f"Key({self._text!r})" if self._text else "Key(not known)"

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Key):
            return self is other or bool(self._text and self._text == other._text)
        return bool(self._text) and self._text == other if isinstance(other, str) else False

    def __hash__(self) -> int:
        return hash(str(self))

    def __reduce__(self) -> tuple[type[Key], tuple[str]]:
        return Key, (str(self),)


@dataclass(frozen=True)
class Message:
    """A payload and what goes with it. A higher priority goes first where a queue has priorities.

    Group 0 speaks to everybody. Attributes are pairs of text, in order, and may repeat. Time and
    key are given by the queue: a message that is put again gets others. Attributes may be given as
    a mapping or as pairs.
    """

    payload: bytes
    priority: int = 0
    group: int = 0
    attributes: Attributes = ()
    sender: str = ""
    time: datetime | None = None
    key: Key | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "payload", checked_payload(self.payload))
        _check_number("priority", self.priority)
        _check_number("group", self.group)
        if self.attributes != ():
            object.__setattr__(self, "attributes", _checked_attributes(self.attributes))
        _check_text("sender", self.sender)
        if len(self.sender) > SENDER_LENGTH_MAX:
            raise InvalidValue(f"sender has {len(self.sender)} characters, 255 are allowed")

    def get(self, name: str, default: str = "") -> str:
        """The first attribute of this name."""
        return next((value for key, value in self.attributes if key == name), default)

    @property
    def size(self) -> int:
        """How many bytes it takes in a call, roughly."""
        extra = sum(len(key) + len(value) + ATTRIBUTE_BYTES for key, value in self.attributes)
        return len(self.payload) + extra + OVERHEAD_BYTES


def checked_payload(payload: object) -> bytes:
    """The payload as bytes; text is refused, since only its writer knows the encoding."""
    if type(payload) is bytes:
        _check_size(len(payload))
        return payload
    if isinstance(payload, bytes | bytearray | memoryview):
        _check_size(memoryview(payload).nbytes)
        return bytes(payload)
    hint = ": encode it, as in text.encode()" if isinstance(payload, str) else ""
    raise TypeError(f"a payload is bytes, not {type(payload).__name__}{hint}")


def _check_size(size: int) -> None:
    if size > PAYLOAD_BYTES_MAX:
        raise LimitExceeded(
            f"a payload of {size} bytes: {PAYLOAD_BYTES_MAX} at most can be sent, and a node may "
            "allow less; nothing was put. Keep large data elsewhere, and put where it is"
        )


def _check_number(what: str, value: object) -> None:
    if type(value) is not int:
        raise TypeError(f"{what} is an int, not {type(value).__name__}")
    if not 0 <= value <= NUMBER_MAX:
        raise InvalidValue(f"{what} {value} is not between 0 and {NUMBER_MAX}")


def _check_text(what: str, value: object) -> None:
    if type(value) is not str:
        raise TypeError(f"{what} is a str, not {type(value).__name__}")
    if "\0" in value:
        raise InvalidValue(f"{what} {value[:60]!r} has a NUL character")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidValue(f"{what} {value[:60]!r} cannot be encoded as UTF-8") from None


def _checked_attributes(given: object) -> Attributes:
    pairs = given.items() if isinstance(given, dict) else given
    if isinstance(pairs, str | bytes) or not isinstance(pairs, Iterable):
        raise TypeError(f"attributes are pairs of text, not {type(given).__name__}")
    found = []
    for pair in pairs:
        if isinstance(pair, str | bytes) or not isinstance(pair, Sequence) or len(pair) != 2:
            raise TypeError(f"an attribute is a pair of text, not {pair!r}")
        for part in pair:
            _check_text("an attribute", part)
        found.append((pair[0], pair[1]))
    if len(found) > ATTRIBUTES_MAX:
        raise InvalidValue(f"{len(found)} attributes, {ATTRIBUTES_MAX} are allowed in a message")
    length = sum([len(key) + len(value) for key, value in found])
    if length > ATTRIBUTES_LENGTH_MAX:
        allowed = f"{ATTRIBUTES_LENGTH_MAX} are allowed in a message"
        raise InvalidValue(f"attributes have {length} characters, {allowed}")
    return tuple(found)


def checked_attributes(given: object) -> Attributes:
    """Attributes as a tuple of pairs; raises where they are something else."""
    return _checked_attributes(given) if given else ()


# --- On the way to a node ------------------------------------------------------------------------

# What can be put: a payload alone, which is most of all that is put, or a whole message.
Item = bytes | Message


def item_of(given: object) -> Item:
    """What was given to put_many, checked."""
    if type(given) is bytes:
        if len(given) > PAYLOAD_BYTES_MAX:
            _check_size(len(given))
        return given
    if type(given) is Message:
        return given
    return given if isinstance(given, Message) else checked_payload(given)


def size_of(item: Item) -> int:
    """How many bytes it takes in a call, roughly."""
    return len(item) + OVERHEAD_BYTES if type(item) is bytes else item.size  # type: ignore[union-attr]


def batch_of(items: Sequence[Item], sender: str) -> mqBatch:
    """The items in columns; a column that says nothing is left out."""
    if len(items) == 1:
        only = items[0]
        if type(only) is bytes:
            return structs.batch((only,), (crc32(only),), (), (), (sender,) if sender else ())
    if set(map(type, items)) == {bytes}:
        payloads: tuple[bytes, ...] = tuple(items)  # type: ignore[arg-type]
        senders = (sender,) * len(items) if sender else ()
        return structs.batch(payloads, crc32_of_each(payloads), senders=senders)
    messages = [item if isinstance(item, Message) else Message(item) for item in items]
    payloads = tuple([message.payload for message in messages])
    return structs.batch(
        payloads,
        crc32_of_each(payloads),
        _column([message.priority for message in messages]),
        _column([message.group for message in messages]),
        _column([message.sender or sender for message in messages]),
        _attributes_column(messages),
    )


def _column(values: list[T]) -> tuple[T, ...]:
    return tuple(values) if any(values) else ()


def _attributes_column(messages: list[Message]) -> tuple[tuple[mqAttribute, ...], ...]:
    if not any([message.attributes for message in messages]):
        return ()
    return tuple([written_attributes(message.attributes) for message in messages])


def written_attributes(attributes: Attributes) -> tuple[mqAttribute, ...]:
    """The pairs as they travel."""
    return tuple([mqAttribute(key, value) for key, value in attributes])


# --- On the way from a node ----------------------------------------------------------------------


def messages_of(taken: mqTaken) -> list[Message]:
    """The messages of an answer; raises `Damaged` where one is not what was put."""
    batch = taken.messages
    payloads = batch.payloads
    if crc32_of_each(payloads) != batch.digests:
        raise Damaged()
    if len(payloads) == 1:
        return [_only_message(taken)]
    columns = zip(
        payloads,
        batch.priorities or repeat(0),
        batch.groups or repeat(0),
        batch.attribs or repeat(()),
        batch.senders or repeat(""),
        batch.times or repeat(None),
        taken.keys,
        strict=False,
    )
    return [_made(*row) for row in columns]


def _only_message(taken: mqTaken) -> Message:
    batch = taken.messages
    return _made(
        batch.payloads[0],
        batch.priorities[0] if batch.priorities else 0,
        batch.groups[0] if batch.groups else 0,
        batch.attribs[0] if batch.attribs else (),
        batch.senders[0] if batch.senders else "",
        batch.times[0] if batch.times else None,
        taken.keys[0],
    )


def message_of(
    key: str, header: mqHeader, attribs: tuple[mqAttribute, ...], payload: bytes
) -> Message:
    """The message that the standard interface answers with."""
    return _made(
        payload, header.priority, header.groupID, attribs, header.senderID, header.time, key
    )


def _made(
    payload: bytes,
    priority: int,
    group: int,
    attribs: tuple[mqAttribute, ...],
    sender: str,
    time: mqTimestamp | None,
    key: str,
) -> Message:
    message = _new(Message)
    # It was checked when it was put; and to be told all at once takes half of the time.
    _set(
        message,
        "__dict__",
        {
            "payload": payload,
            "priority": priority,
            "group": group,
            "attributes": tuple([(each.key, each.value) for each in attribs]) if attribs else (),
            "sender": sender,
            "time": None if time is None else _moment(time.mq_sec, time.mq_usec),
            "key": Key(key),
        },
    )
    return message


@lru_cache(maxsize=64)
def _moment(seconds: int, microseconds: int) -> datetime:
    # Messages that were put together have the same time.
    return _EPOCH + timedelta(0, seconds, microseconds)
