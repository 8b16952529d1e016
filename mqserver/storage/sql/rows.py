"""Messages as rows: what goes into the two tables of a message, and what comes out of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mqserver.storage.contract import Attributes, Message, NewMessage
from mqserver.storage.sql.schema import ENQUEUED, body, from_text, message, to_text
from mqserver.storage.sql.vendor import Admission, AnyRow

# In the order of the fields of `Message`, and the rank behind them.
COLUMNS = (
    message.c.key,
    body.c.payload,
    body.c.digest,
    message.c.priority,
    message.c.group,
    body.c.time_us,
    message.c.sender,
    body.c.attributes,
    message.c.rank,
)
_ATTRIBUTES, _RANK = 7, 8


def message_row(key: int, new: NewMessage, admission: Admission, branch: int) -> tuple[object, ...]:
    """The row of the table of messages, in the order of its columns."""
    return (
        key,
        admission.queue,
        new.priority if admission.is_prioritized else 0,
        new.priority,
        new.group,
        len(new.payload),
        to_text(new.sender),
        branch,
        ENQUEUED,
        branch,
        None,
    )


def body_row(key: int, new: NewMessage, attributes: object) -> tuple[object, ...]:
    """The row of the table of bodies, in the order of its columns."""
    return (key, new.payload, new.digest, new.time_us, attributes)


def attributes_to_json(new: NewMessage) -> list[dict[str, str]]:
    """The attributes as a value for JSON."""
    return [{"name": to_text(name), "value": to_text(value)} for name, value in new.attributes]


def to_message(row: Sequence[Any]) -> Message:
    """The message in a row of `COLUMNS`."""
    attributes: Attributes = ()
    if row[_ATTRIBUTES] is not None:
        attributes = tuple(
            (from_text(pair["name"]), from_text(pair["value"])) for pair in row[_ATTRIBUTES]
        )
    return Message._make((*row[:_ATTRIBUTES], attributes))


def in_order(rows: Sequence[AnyRow]) -> list[Message]:
    """The messages in the order of their queue."""
    ordered = sorted(rows, key=lambda row: (-row[_RANK], row[0]))
    return [to_message(row) for row in ordered]
