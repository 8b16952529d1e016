"""What `oncemq dump` shows, as lines for people: a word that says what it is, and the rest.

Pure. Names and payloads come from whoever wrote to the store, so that nothing of them reaches a
terminal that is not printable.
"""

from collections.abc import Mapping, Sequence
from typing import Any

RANGES_SHOWN = 6
ID_SHOWN = 64

Fields = Mapping[str, Any]


def line_of(what: str, fields: Fields) -> str:
    """One line for one item of a dump; see `mqserver/storage/dump.py` for the items."""
    match what:
        case "control":
            word, text = "control", _control(fields)
        case "segment":
            word = "segment"
            text = f"{fields['file']}: LSN {fields['lsn']} to {fields['lsn_end']}"
        case "record":
            word, text = (
                "record",
                f"LSN {fields['lsn']}: {fields['kind']} {_record(fields)}".rstrip(),
            )
        case "payload":
            word, text = "payload", _payload(fields)
        case "run":
            word, text = "run", _run(fields)
        case "free":
            word, text = "free", f"page {fields['page']}: {counted(fields['pages'], 'page')}"
        case "finding":
            word, text = fields["severity"], f"{place(fields)}: {printable(fields['what'])}"
        case "end":
            word, text = "end", f"the log ends at LSN {fields['lsn']}"
        case _:
            word, text = "stop", printable(fields["why"])
    return f"{word:<8} {text}"


def printable(text: str) -> str:
    """The text with an escape for everything that is not to be seen, or does something."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def counted(count: int, noun: str) -> str:
    """A number and what is counted."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def place(fields: Fields) -> str:
    """File, offset and LSN of a finding, as far as they are known."""
    parts = [printable(fields["file"])]
    parts += [f"offset {fields['offset']}"] if fields["offset"] is not None else []
    parts += [f"LSN {fields['lsn']}"] if fields["lsn"] is not None else []
    return ", ".join(parts)


# --- Control record and pages --------------------------------------------------------------------


def _control(fields: Fields) -> str:
    closed = fields["closed_lsn"]
    parts = [
        f"sequence {fields['sequence']}",
        f"epoch {fields['epoch']}",
        f"restart at LSN {fields['restart_lsn']}",
        f"checkpoint at LSN {fields['checkpoint_lsn']}" if fields["checkpoint_lsn"] else "",
        f"closed at LSN {closed}" if closed else "not closed",
        counted(fields["pages"], "page"),
        f"next key {fields['next_key']}",
        f"identity {fields['identity']}",
        f"format {fields['format']}",
        f"pages of {fields['page_bytes']} bytes",
        f"segments of {fields['segment_bytes']} bytes",
    ]
    current = ", current" if fields["current"] else ""
    return f"slot {fields['slot']}{current}: " + ", ".join(part for part in parts if part)


def _run(fields: Fields) -> str:
    queue = f"queue {printable(fields['queue'])}"
    match fields["holds"]:
        case "message":
            held = f"message {fields['key']} of {queue}"
        case "bundle":
            live = "messages" if fields["live"] is None else counted(fields["live"], "message")
            held = f"{live} of {queue}, {fields['dead']:,} gone"
        case _:
            held = "nothing but what the checkpoint saw; free with the next one"
    broken = "" if fields["whole"] else ", DAMAGED"
    size = counted(fields["bytes"], "byte")
    return f"page {fields['page']}: {counted(fields['pages'], 'page')}, {held}, {size}{broken}"


# --- Records -------------------------------------------------------------------------------------


def _record(fields: Fields) -> str:
    if "unreadable" in fields:
        return f"({counted(fields['bytes'], 'byte')}) cannot be read: {fields['unreadable']}"
    match fields["kind"]:
        case "COMMITTED" | "PREPARED":
            return _branch(fields)
        case "RESOLVED":
            counts = f"{fields['stored']:,} stored, {fields['taken']:,} taken"
            return f"branch {_id(fields['branch'])}: {fields['outcome']}, {counts}"
        case "QUEUE_SET":
            settings = ", ".join(f"{name} {value}" for name, value in fields["settings"].items())
            return f"queue {printable(fields['queue'])}: {settings}"
        case "CHECKPOINT":
            return ", ".join(f"{name} {fields[name]:,}" for name in _CHECKPOINT)
        case "RESERVED" | "FINISHED":
            who = f"consumer {printable(fields['consumer'])}, number {fields['number']}"
            what = f"{counted(fields['messages'], 'message')} of {printable(fields['queue'])}"
            return f"{who}: {what} ({_keys(fields['keys'])})"
    names = [f"{name} {_named(name, fields)}" for name in _NAMES if name in fields]
    return ", ".join(names) or counted(fields["bytes"], "byte")


_CHECKPOINT = ("queues", "consumers", "marks", "outcomes", "resolved", "runs")
_NAMES = ("branch", "queue", "consumer")


def _named(name: str, fields: Fields) -> str:
    return _id(fields[name]) if name == "branch" else printable(fields[name])


def _branch(fields: Fields) -> str:
    parts = [_stored(each) for each in fields["stored"]]
    parts += [_taken(each) for each in fields["taken"]]
    parts += [f"mark {printable(name)} {value}" for name, value in fields["marks"].items()]
    if fields["kind"] == "PREPARED":
        parts.append(f"recovery {counted(fields['recovery_bytes'], 'byte')}")
    return f"branch {_id(fields['branch'])}: " + (", ".join(parts) or "nothing")


def _stored(fields: Fields) -> str:
    what = f"{counted(fields['messages'], 'message')} into {printable(fields['queue'])}"
    runs = f", {len(fields['runs']):,} in pages" if fields["runs"] else ""
    return f"{what} ({_keys(fields['keys'])}, {counted(fields['bytes'], 'byte')}{runs})"


def _taken(fields: Fields) -> str:
    what = f"{counted(fields['messages'], 'message')} out of {printable(fields['queue'])}"
    return f"{what} ({_keys(fields['keys'])})"


def _keys(ranges: Sequence[Sequence[int]]) -> str:
    shown = [_range(first, last) for first, last in ranges[:RANGES_SHOWN]]
    more = ", ..." if len(ranges) > RANGES_SHOWN else ""
    is_one = len(ranges) == 1 and ranges[0][0] == ranges[0][1]
    return ("key " if is_one else "keys ") + ", ".join(shown) + more


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _id(digits: str) -> str:
    return digits if len(digits) <= ID_SHOWN else f"{digits[:ID_SHOWN]}..."


def _payload(fields: Fields) -> str:
    more = "..." if fields["is_cut"] else ""
    whose = f"message {fields['key']} of {printable(fields['queue'])}"
    return f'{whose}, {counted(fields["bytes"], "byte")}: "{fields["shown"]}"{more}'
