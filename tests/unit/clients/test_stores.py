"""Reports on stores, for people and for scripts, and what is said where there is none.

What is examined, and how, is shown in `tests/unit/storage`; the commands in `tests/integration`.
"""

import json
from pathlib import Path

import pytest

from clients.findings import Status
from clients.stores import (
    ROWS_MAX,
    StoreTrouble,
    Trouble,
    check_store,
    dump_store,
    object_of,
    rows_of,
    verdict,
)
from mqserver.storage.check import LogFacts, PageFacts, Report
from mqserver.storage.contract import BranchInfo, ConsumerInfo, Outcome, QueueInfo, QueueSettings
from mqserver.storage.findings import Finding, Severity
from mqserver.storage.format import FORMAT_VERSION, Control

ROOT = Path(__file__).resolve().parents[3]
GUIDE = ROOT / "docs" / "guide" / "command.md"
DAMAGE = Finding(Severity.DAMAGE, "data", "the page is not whole", "Restore it.", offset=512)
NOTICE = Finding(Severity.NOTICE, "notes\x1b.txt", "is none of the store's files", "Nothing.")


def _report(*findings: Finding, refusal: str = "") -> Report:
    return Report(
        directory="data",
        findings=list(findings),
        control=Control(1024, bytes(16), 16, epoch=3, end_lsn=4880),
        log=LogFacts(3, 8192, 976, 1464, 4880, {"COMMITTED": 7}),
        pages=PageFacts(1024, 12, 8, 4),
        queues=[QueueInfo("a\x1bb", QueueSettings(), 5, 2, 700, 0)],
        branches=[BranchInfo(b"\x01\x02", Outcome.PREPARED, b"secret", 1, 2)],
        consumers=[ConsumerInfo("etl", "q", 1, 3, 4)],
        refusal=refusal,
    )


def test_a_sound_store_is_told_in_rows() -> None:
    rows = rows_of(_report())
    assert {row.status for row in rows} == {Status.OK}
    assert {row.name: row.found for row in rows} == {
        "store": f"{'00' * 16}, format {FORMAT_VERSION}, closed in good order",
        "log": "3 segments of 8.0 KiB, 7 records, 3.8 KiB for a restart to read",
        "data": "12 pages of 1.0 KiB, 8 in use, 4 free",
        "queue": r"a\x1bb: 5 messages, 2 more held, 700 bytes",
        "branch": "0102: prepared, 1 stored, 2 taken",
        "consumer": "etl: 4 messages of queue q reserved, 1 of 3 finished",
    }
    assert verdict(_report()) == "The store is sound."


def test_damage_is_told_last_and_marks_what_it_is_in() -> None:
    rows = rows_of(_report(DAMAGE, NOTICE))
    assert [row.name for row in rows[-2:]] == ["notice", "damage"]
    assert rows[-1].status is Status.PROBLEM
    assert rows[-1].found == "data, offset 512: the page is not whole"
    assert rows[-1].advice == "Restore it."
    assert {row.name for row in rows if row.status is Status.PROBLEM} == {"data", "damage"}


def test_nothing_reaches_a_terminal_that_is_not_printable() -> None:
    assert all(row.found.isprintable() for row in rows_of(_report(DAMAGE, NOTICE)))


def test_the_verdict_says_whether_a_server_would_start() -> None:
    assert verdict(_report(DAMAGE)).startswith("1 place is damaged. A server would start")
    refused = verdict(_report(DAMAGE, DAMAGE, refusal="data, offset 512"))
    assert refused == "2 places are damaged. A server would refuse to start: data, offset 512."
    assert verdict(_report(NOTICE)) == "The store is sound."


def test_what_could_not_be_examined_is_told() -> None:
    report = Report("data", [DAMAGE], refusal="no", unexamined=["the log"])
    [unexamined, damage] = rows_of(report)
    assert (unexamined.name, unexamined.found) == ("not examined", "the log")
    assert damage.name == "damage"


def test_pages_are_not_said_to_be_free_where_that_is_not_known() -> None:
    report = _report(DAMAGE)
    report.pages = PageFacts(1024, 12, None, None)
    assert [row.found for row in rows_of(report) if row.name == "data"] == ["12 pages of 1.0 KiB"]


def test_very_many_rows_are_shortened_for_people_only() -> None:
    report = _report(*[DAMAGE] * (ROWS_MAX + 7))
    rows = rows_of(report)
    assert sum(row.name == "damage" for row in rows) == ROWS_MAX + 1
    assert rows[-1].found == "and 7 more; --json shows all"
    findings = object_of(report, "1.0")["findings"]
    assert isinstance(findings, list)
    assert len(findings) == ROWS_MAX + 7


def test_decisions_of_a_coordinator_are_called_so() -> None:
    report = _report()
    report.has_decisions = True
    assert "decisions of a coordinator" in rows_of(report)[0].found
    assert object_of(report, "1.0")["holds"] == "decisions"


def test_the_object_is_plain_and_keeps_secrets() -> None:
    text = json.dumps(object_of(_report(DAMAGE, NOTICE), "1.0"))
    assert "secret" not in text
    assert b"secret".hex() not in text
    found = json.loads(text)
    assert (found["sound"], found["starts"]) == (False, True)
    assert found["pages"] == {"page_bytes": 1024, "total": 12, "used": 8, "free": 4}
    assert found["findings"][0] == {
        "severity": "damage",
        "file": "data",
        "what": "the page is not whole",
        "advice": "Restore it.",
        "offset": 512,
        "lsn": None,
    }


def test_where_nothing_is_known_the_object_has_null() -> None:
    found = object_of(Report("data", [DAMAGE], refusal="no"), "1.0")
    assert found["store"] is found["log"] is found["pages"] is None
    assert found["starts"] is False


def _names(value: object) -> set[str]:
    match value:
        case dict():
            return set(value).union(*map(_names, value.values()))
        case list():
            return set().union(*map(_names, value))
    return set()


def test_the_guide_names_every_field_of_the_object() -> None:
    guide = GUIDE.read_text(encoding="utf-8")
    # Kinds of records are in the log's own words, and described with the format.
    names = _names(object_of(_report(DAMAGE), "1.0")) - {"COMMITTED"}
    assert [name for name in sorted(names) if f"`{name}`" not in guide] == []


# --- Where there is no store


def _trouble(path: Path) -> StoreTrouble:
    with pytest.raises(StoreTrouble) as raised:
        check_store(str(path))
    with pytest.raises(StoreTrouble) as again:
        list(dump_store(str(path), True, True, False))
    assert str(raised.value) == str(again.value)
    return raised.value


def test_nothing_at_all_is_not_a_store(tmp_path: Path) -> None:
    trouble = _trouble(tmp_path / "nowhere")
    assert trouble.trouble is Trouble.NOT_A_STORE
    assert str(trouble) == f"there is nothing at {tmp_path}/nowhere."


def test_a_directory_of_something_else_is_not_a_store(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "notes.txt").write_text("milk")
    trouble = _trouble(tmp_path)
    assert trouble.trouble is Trouble.NOT_A_STORE
    assert str(trouble) == f"{tmp_path}: there is no store here."


def test_a_database_is_sent_to_its_own_tools(tmp_path: Path) -> None:
    database = tmp_path / "mq.db"
    database.write_bytes(b"SQLite format 3\0".ljust(4096, b"\0"))
    for path, words in ((database, "is a file"), (tmp_path, "mq.db, a SQLite database")):
        trouble = _trouble(path)
        assert trouble.trouble is Trouble.NOT_A_STORE
        assert words in str(trouble)
        assert "directories of the paged storage" in str(trouble)
        assert "PRAGMA integrity_check" in str(trouble)


def test_a_directory_that_others_can_write_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    trouble = _trouble(tmp_path)
    assert trouble.trouble is Trouble.REFUSED
    assert "can be written by other users" in str(trouble)
