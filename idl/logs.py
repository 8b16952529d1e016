"""How the servers log: a line for each thing, for people or for programs.

A record carries, beside its text, what is known of the call that was being served: principal,
transaction and request; and what the one who logs adds by `extra`: queue, message, branch. Nothing
that a peer has sent can begin a line of its own. Secrets do not come here: see `idl.access`.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

from idl.call import current_call
from idl.mapping import InvalidValue
from idl.otids import show, split_otid

FIELDS = ("principal", "transaction", "branch", "queue", "message_key", "request")
AUDIT = "oncemq.audit"

_ESCAPES = {number: f"\\x{number:02x}" for number in (*range(32), *range(127, 160))}
# Marks that turn the direction of writing, and separators that some viewers break lines at.
_ESCAPES |= {number: f"\\u{number:04x}" for number in (*range(0x2028, 0x202F), 0x200E, 0x200F)}
_ESCAPES |= {number: f"\\u{number:04x}" for number in range(0x2066, 0x206A)}


def set_up(level: str, is_json: bool) -> None:
    """From now on records of this level and above are written to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if is_json else TextLines())
    handler.addFilter(_add_what_is_known)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    # A log that cannot be written must not stop the server that writes it.
    logging.raiseExceptions = False
    set_level(level)


def set_level(level: str) -> None:
    """From now on records of this level and above are written."""
    logging.getLogger().setLevel(level.upper())


class TextLines(logging.Formatter):
    """A line for people; what belongs to a record and has lines of its own is indented."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage().translate(_ESCAPES)
        known = "".join(f" {name}={value}" for name, value in _known(record).items())
        when = self.formatTime(record)
        line = f"{when} {record.levelname} {record.name} {text}{known.translate(_ESCAPES)}"
        if record.exc_info:
            told = self.formatException(record.exc_info).splitlines()
            line = "\n    ".join((line, *(part.translate(_ESCAPES) for part in told)))
        return line


class JsonLines(logging.Formatter):
    """One object a line: `time`, `level`, `logger`, `text`, and what is known beside it."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        said: dict[str, object] = {
            "time": when,
            "level": record.levelname.lower(),
            "logger": record.name,
            "text": record.getMessage(),
            **_known(record),
        }
        if record.exc_info:
            said["traceback"] = self.formatException(record.exc_info)
        return json.dumps(said)


def _known(record: logging.LogRecord) -> dict[str, str]:
    found = {name: getattr(record, name, "") for name in FIELDS}
    return {name: str(value)[:300] for name, value in found.items() if value}


def _add_what_is_known(record: logging.LogRecord) -> bool:
    try:
        call = current_call()
    except LookupError:
        return True
    known = {"principal": call.principal.name, "request": call.request_id.hex()}
    if call.transaction is not None:
        try:
            known["transaction"] = show(split_otid(call.transaction.current.otid)[0])
        except InvalidValue:
            known["transaction"] = "not one of ours"
    for name, value in known.items():
        if not hasattr(record, name):
            setattr(record, name, value)
    return True
