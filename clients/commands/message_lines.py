"""Messages as lines: JSON for bulk work, and a few words of each for people. Pure.

A line of JSON is an object with `payload` (text) or `payload_base64` (any bytes), and optionally
`priority`, `group`, `attributes` (an object, or pairs where a name repeats) and `sender`. What is
written has `key` and `time` too, which are ignored when it is read: what one node gave out can be
put into another.
"""

import base64
import binascii
import json
from typing import Any

from clients.messages import Message
from clients.store_lines import counted, printable
from idl.mapping import InvalidValue

_READ = {"payload", "payload_base64", "priority", "group", "attributes", "sender"}
_IGNORED = {"key", "time", "queue"}


def message_of(line: bytes, where: str) -> Message:
    """The message that a line of JSON describes; raises `InvalidValue`, which says where."""
    try:
        fields = json.loads(line)
    except ValueError as wrong:
        raise InvalidValue(f"{where}: no line of JSON: {wrong}") from wrong
    if not isinstance(fields, dict):
        raise InvalidValue(f'{where}: write an object such as {{"payload": "text"}}')
    strange = fields.keys() - _READ - _IGNORED
    if strange:
        known = ", ".join(sorted(_READ))
        raise InvalidValue(f"{where}: there is no field {min(strange)!r}; there are {known}")
    try:
        return Message(
            _payload(fields),
            fields.get("priority", 0),
            fields.get("group", 0),
            fields.get("attributes") or (),
            fields.get("sender", ""),
        )
    except (InvalidValue, TypeError, UnicodeEncodeError) as wrong:
        raise InvalidValue(f"{where}: {wrong}") from wrong


def _payload(fields: dict[str, Any]) -> bytes:
    if ("payload" in fields) == ("payload_base64" in fields):
        raise InvalidValue("write either payload or payload_base64")
    if "payload" in fields:
        if not isinstance(fields["payload"], str):
            raise InvalidValue("payload is a text; JSON within it is a text too")
        return fields["payload"].encode()
    try:
        return base64.b64decode(fields["payload_base64"], validate=True)
    except (binascii.Error, ValueError, TypeError) as wrong:
        raise InvalidValue(f"payload_base64: {wrong}") from wrong


def fields_of(message: Message) -> dict[str, Any]:
    """The message for scripts; see the module's text."""
    fields: dict[str, Any] = {"key": str(message.key) if message.key is not None else None}
    try:
        fields["payload"] = message.payload.decode()
    except UnicodeDecodeError:
        fields["payload_base64"] = base64.b64encode(message.payload).decode()
    fields["priority"] = message.priority
    fields["group"] = message.group
    fields["attributes"] = [list(pair) for pair in message.attributes]
    fields["sender"] = message.sender
    fields["time"] = None if message.time is None else message.time.isoformat()
    return fields


def line_of(message: Message) -> str:
    """The message as a line of JSON."""
    return json.dumps(fields_of(message))


def row_of(message: Message, width: int) -> tuple[str, ...]:
    """Key, time, priority, group, size and the beginning of the payload, for a table."""
    return (
        str(message.key),
        "" if message.time is None else f"{message.time:%Y-%m-%d %H:%M:%S}",
        str(message.priority),
        str(message.group),
        str(len(message.payload)),
        beginning(message.payload, width),
    )


def beginning(payload: bytes, width: int) -> str:
    """The first characters of a payload; what is no text is only counted."""
    if b"\0" in payload[:1000]:
        return f"({counted(len(payload), 'byte')}, binary)"
    text = payload[: 4 * width].decode(errors="replace")
    shown = printable(text)
    return shown if len(shown) <= width and len(text) <= width else f"{shown[: width - 3]}..."
