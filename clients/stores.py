"""Stores that no server has open: opens a data directory to be looked at, and reports on it.

The one client module besides the embedded node that imports the server. `oncemq check` and
`oncemq dump` are for a store whose server is not running, and often will not start, so there is
nobody to be asked over the wire. Decides nothing: `mqserver/storage/check.py` does. The JSON object
made here is documented in `docs/guide/command.md` and is a promise.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from enum import Enum

from clients.findings import Finding, Status, size
from clients.store_lines import counted, printable
from mqserver.errors import StorageError, StorageLocked, WrongFormat
from mqserver.storage.check import Report, check
from mqserver.storage.contract import BranchInfo, ConsumerInfo, QueueInfo
from mqserver.storage.disk import Disk, RealDisk
from mqserver.storage.dump import Item, dump
from mqserver.storage.findings import Finding as Found

REPORT_FORMAT = 1
ROWS_MAX = 100

_SQLITE = b"SQLite format 3\0"
_SQL_STORE = (
    "This command is for directories of the paged storage. What a SQL database holds is examined "
    "with the tools of the database; for SQLite: sqlite3 FILE 'PRAGMA integrity_check'."
)


class Trouble(Enum):
    """Why a store cannot be looked at."""

    IN_USE = "in use"
    NOT_A_STORE = "not a store"
    REFUSED = "refused"


class StoreTrouble(Exception):
    """There is nothing to look at; the text says why and what to do."""

    def __init__(self, trouble: Trouble, text: str) -> None:
        super().__init__(text)
        self.trouble = trouble


def check_store(path: str) -> Report:
    """What is to be said of the store in this directory. Raises `StoreTrouble`."""
    with _opened(path) as disk:
        return check(disk)


def dump_store(path: str, has_log: bool, has_pages: bool, has_payloads: bool) -> Iterator[Item]:
    """The items of the store in this directory. Raises `StoreTrouble`, with the first item."""
    with _opened(path) as disk:
        yield from dump(disk, has_log, has_pages, has_payloads)


# --- Opening -------------------------------------------------------------------------------------


@contextmanager
def _opened(path: str) -> Iterator[Disk]:
    try:
        disk = RealDisk(path, read_only=True)
    except StorageError as error:
        raise _unopened(path, error) from error
    try:
        yield disk
    except StorageLocked as error:
        holder = error.args[1]
        text = f"{path} is open in {holder}. Stop that first, or look at a copy."
        raise StoreTrouble(Trouble.IN_USE, text) from error
    except WrongFormat as error:
        raise StoreTrouble(Trouble.NOT_A_STORE, _strange(path, disk, error)) from error
    except StorageError as error:
        raise StoreTrouble(Trouble.REFUSED, _refused(error)) from error
    finally:
        disk.close()


def _unopened(path: str, error: StorageError) -> StoreTrouble:
    match error.__cause__:
        case FileNotFoundError():
            return StoreTrouble(Trouble.NOT_A_STORE, f"there is nothing at {path}.")
        case NotADirectoryError():
            return StoreTrouble(Trouble.NOT_A_STORE, f"{path} is a file. {_SQL_STORE}")
    return StoreTrouble(Trouble.REFUSED, _refused(error))


def _strange(path: str, disk: Disk, error: WrongFormat) -> str:
    names = [name for name in disk.names() if _is_sqlite(disk, name)]
    if names:
        return f"{path} holds no store, but {printable(names[0])}, a SQLite database. {_SQL_STORE}"
    why = error.args[-1]
    if "version" in why:
        return f"{path}: {why}, and this program reads version 1. Use the OnceMQ that wrote it."
    return f"{path}: {why}."


def _is_sqlite(disk: Disk, name: str) -> bool:
    # What cannot be read, such as a directory, is none.
    with suppress(StorageError):
        file = disk.open(name)
        try:
            return file.read(0, len(_SQLITE)) == _SQLITE
        finally:
            file.close()
    return False


def _refused(error: StorageError) -> str:
    told = ": ".join(printable(str(detail)) for detail in error.args)
    is_foreign = isinstance(error.__cause__, PermissionError) or "belongs to" in told
    advice = " Run this command as the user to whom the store belongs." if is_foreign else ""
    return f"{told}.{advice}"


# --- A report for people -------------------------------------------------------------------------


def verdict(report: Report) -> str:
    """What was found, in a sentence or two."""
    if report.is_sound:
        return "The store is sound."
    places = counted(len(report.damage), "place")
    are = "is" if len(report.damage) == 1 else "are"
    if report.refusal:
        return f"{places} {are} damaged. A server would refuse to start: {report.refusal}."
    return f"{places} {are} damaged. A server would start, and refuse what is damaged."


def rows_of(report: Report) -> list[Finding]:
    """The report as findings; what is damaged comes last, where it is seen first."""
    rows = _facts(report)
    rows += _shortened([_queue_row(info) for info in report.queues], "queue")
    rows += _shortened([_branch_row(info) for info in report.branches], "branch")
    rows += _shortened([_consumer_row(info) for info in report.consumers], "consumer")
    rows += [
        Finding("not examined", Status.WARNING, what, "The damage below stands in the way.")
        for what in report.unexamined
    ]
    notices = [each for each in report.findings if each not in report.damage]
    rows += _shortened([_row("notice", Status.WARNING, each) for each in notices], "notice")
    damage = [_row("damage", Status.PROBLEM, each) for each in report.damage]
    return rows + _shortened(damage, "damage")


def _facts(report: Report) -> list[Finding]:
    damaged = {each.file.partition("-")[0] for each in report.damage}
    facts = []
    if report.control is not None:
        control = report.control
        ended = "closed in good order" if control.end_lsn else "not closed, as after a crash"
        whose = ", decisions of a coordinator" if report.has_decisions else ""
        found = f"{control.identity.hex()}, format {report.format_version}, {ended}{whose}"
        facts.append(_fact("store", found, "control" in damaged))
    if report.log is not None:
        log = report.log
        parts = (
            f"{counted(log.segments, 'segment')} of {size(log.segment_bytes)}",
            f"{counted(sum(log.records.values()), 'record')}",
            f"{size(log.end_lsn - log.restart_lsn)} for a restart to read",
        )
        facts.append(_fact("log", ", ".join(parts), "log" in damaged))
    if report.pages is not None:
        pages = report.pages
        known = pages.used is not None and pages.free is not None
        counts = f", {pages.used:,} in use, {pages.free:,} free" if known else ""
        found = f"{counted(pages.total, 'page')} of {size(pages.page_bytes)}{counts}"
        facts.append(_fact("data", found, "data" in damaged))
    return facts


def _fact(name: str, found: str, is_damaged: bool) -> Finding:
    if is_damaged:
        return Finding(name, Status.PROBLEM, found, "Damaged: see below.")
    return Finding(name, Status.OK, found)


def _row(name: str, status: Status, found: Found) -> Finding:
    return Finding(name, status, printable(f"{found.place}: {found.what}"), found.advice)


def _queue_row(info: QueueInfo) -> Finding:
    held = f", {info.locked:,} more held" if info.locked else ""
    text = f"{counted(info.visible, 'message')}{held}, {size(info.payload_bytes)}"
    return Finding("queue", Status.OK, f"{printable(info.name)}: {text}")


def _branch_row(info: BranchInfo) -> Finding:
    outcome = info.outcome.name.lower().replace("_", " ")
    counts = f"{info.stored:,} stored, {info.taken:,} taken"
    return Finding("branch", Status.OK, f"{info.branch.hex()}: {outcome}, {counts}")


def _consumer_row(info: ConsumerInfo) -> Finding:
    held = f"{counted(info.messages, 'message')} of queue {printable(info.queue)}"
    text = f"{held} reserved, {info.finished:,} of {info.reserved:,} finished"
    return Finding("consumer", Status.OK, f"{printable(info.consumer)}: {text}")


def _shortened(rows: list[Finding], name: str) -> list[Finding]:
    if len(rows) <= ROWS_MAX:
        return rows
    more = f"and {len(rows) - ROWS_MAX:,} more; --json shows all"
    advice = rows[0].advice
    return [*rows[:ROWS_MAX], Finding(name, rows[0].status, more, advice)]


# --- A report for scripts ------------------------------------------------------------------------


def object_of(report: Report, version: str) -> dict[str, object]:
    """The report as the object that `oncemq check --json` prints."""
    return {
        "format": REPORT_FORMAT,
        "oncemq": version,
        "directory": report.directory,
        "sound": report.is_sound,
        "starts": not report.refusal,
        "refusal": report.refusal,
        "verdict": verdict(report),
        "holds": "decisions" if report.has_decisions else "queues",
        "store": _store_object(report),
        "log": None if report.log is None else asdict(report.log),
        "pages": None if report.pages is None else asdict(report.pages),
        "queues": [_queue_object(info) for info in report.queues],
        "branches": [_branch_object(info) for info in report.branches],
        "consumers": [asdict(info) for info in report.consumers],
        "findings": [asdict(each) | {"severity": each.severity.value} for each in report.findings],
        "unexamined": report.unexamined,
    }


def _store_object(report: Report) -> dict[str, object] | None:
    if report.control is None:
        return None
    return {
        "identity": report.control.identity.hex(),
        "format_version": report.format_version,
        "epoch": report.control.epoch,
        "closed": bool(report.control.end_lsn),
        "next_key": report.control.next_key,
    }


def _queue_object(info: QueueInfo) -> dict[str, object]:
    return {
        "name": info.name,
        "visible": info.visible,
        "locked": info.locked,
        "payload_bytes": info.payload_bytes,
        "settings": asdict(info.settings),
    }


def _branch_object(info: BranchInfo) -> dict[str, object]:
    # What `recovery` says is for the coordinator alone, and has no place in a report.
    return {
        "branch": info.branch.hex(),
        "outcome": info.outcome.name,
        "stored": info.stored,
        "taken": info.taken,
        "recovery_bytes": len(info.recovery),
    }
