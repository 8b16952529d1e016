"""The lines of a dump: one for each item, short, and harmless to a terminal."""

from typing import Any

import pytest

from clients.store_lines import counted, line_of, printable

CONTROL = {
    "slot": 1,
    "current": True,
    "format": 1,
    "identity": "00ff",
    "sequence": 5,
    "epoch": 2,
    "page_bytes": 1024,
    "segment_bytes": 8192,
    "restart_lsn": 976,
    "checkpoint_lsn": 1464,
    "closed_lsn": 0,
    "pages": 7,
    "next_key": 1001,
}
STORED = {"queue": "q", "messages": 2, "bytes": 30, "keys": [(1, 1), (5, 5)], "runs": [4]}
TAKEN = {"queue": "p", "messages": 1, "keys": [(9, 9)]}
BRANCH = {"branch": "ab", "recovery_bytes": 4, "stored": [STORED], "taken": [TAKEN], "marks": {}}
RUN = {"page": 3, "pages": 2, "bytes": 9, "queue": "q", "key": 7, "dead": 1, "whole": True}
CHECKPOINT = dict.fromkeys(("queues", "consumers", "marks", "outcomes", "resolved", "runs"), 2)


def _record(kind: str, **fields: Any) -> tuple[str, dict[str, Any]]:
    return "record", {"lsn": 488, "kind": kind, "bytes": 17} | fields


LINES: dict[str, tuple[str, dict[str, Any]]] = {
    "segment  log-00: LSN 0 to 488": ("segment", {"file": "log-00", "lsn": 0, "lsn_end": 488}),
    "end      the log ends at LSN 488": ("end", {"lsn": 488}),
    "free     page 3: 1 page": ("free", {"page": 3, "pages": 1}),
    "stop     no more": ("stop", {"why": "no more"}),
    "record   LSN 488: COMMITTED branch ab: 2 messages into q (keys 1, 5, 30 bytes, 1 in pages), "
    "1 message out of p (key 9)": _record("COMMITTED", **BRANCH),
    "record   LSN 488: PREPARED branch ab: mark job 4, recovery 4 bytes": _record(
        "PREPARED", **BRANCH | {"stored": [], "taken": [], "marks": {"job": 4}}
    ),
    "record   LSN 488: COMMIT branch ab": _record("COMMIT", branch="ab"),
    "record   LSN 488: QUEUE_DELETED queue q": _record("QUEUE_DELETED", queue="q"),
    "record   LSN 488: CONSUMER_DROPPED consumer etl": _record("CONSUMER_DROPPED", consumer="etl"),
    "record   LSN 488: QUEUE_SET queue q: enabled True": _record(
        "QUEUE_SET", queue="q", settings={"enabled": True}
    ),
    "record   LSN 488: RESERVED consumer etl, number 2: 3 messages of q (keys 4-6)": _record(
        "RESERVED", consumer="etl", number=2, queue="q", messages=3, keys=[(4, 6)]
    ),
    "record   LSN 488: RESOLVED branch ab: HEURISTICALLY_COMMITTED, 1 stored, 2 taken": _record(
        "RESOLVED", branch="ab", outcome="HEURISTICALLY_COMMITTED", stored=1, taken=2
    ),
    "record   LSN 488: CHECKPOINT queues 2, consumers 2, marks 2, outcomes 2, resolved 2, "
    "runs 2": _record("CHECKPOINT", **CHECKPOINT),
    "record   LSN 488: DECISION 17 bytes": _record("DECISION"),
    "record   LSN 488: COMMITTED (17 bytes) cannot be read: why": _record(
        "COMMITTED", unreadable="why"
    ),
    "run      page 3: 2 pages, message 7 of queue q, 9 bytes": (
        "run",
        RUN | {"holds": "message", "live": 1},
    ),
    "run      page 3: 2 pages, 4 messages of queue q, 1 gone, 9 bytes, DAMAGED": (
        "run",
        RUN | {"holds": "bundle", "live": 4, "whole": False},
    ),
    "run      page 3: 2 pages, messages of queue q, 1 gone, 9 bytes": (
        "run",
        RUN | {"holds": "bundle", "live": None},
    ),
    "run      page 3: 2 pages, nothing but what the checkpoint saw; free with the next one, "
    "9 bytes": ("run", RUN | {"holds": "waiting", "live": 0}),
    'payload  message 7 of q, 100 bytes: "abc"...': (
        "payload",
        {"key": 7, "queue": "q", "bytes": 100, "shown": "abc", "is_cut": True},
    ),
    "damage   data, offset 512: torn": (
        "finding",
        {"severity": "damage", "file": "data", "offset": 512, "lsn": None, "what": "torn"},
    ),
}


@pytest.mark.parametrize("line", LINES)
def test_an_item_is_one_line(line: str) -> None:
    assert line_of(*LINES[line]) == line


def test_the_control_record_is_one_line() -> None:
    line = line_of("control", CONTROL)
    assert line.startswith("control  slot 1, current: sequence 5, epoch 2, restart at LSN 976")
    assert "not closed, 7 pages, next key 1001, identity 00ff" in line
    assert "closed at LSN 99," in line_of("control", CONTROL | {"closed_lsn": 99})


def test_many_keys_are_shortened() -> None:
    keys = [(number, number) for number in range(0, 100, 2)]
    taken = TAKEN | {"keys": keys, "messages": 50}
    line = line_of(*_record("COMMITTED", **BRANCH | {"stored": [], "taken": [taken]}))
    assert line.endswith("50 messages out of p (keys 0, 2, 4, 6, 8, 10, ...)")


def test_long_names_of_branches_are_shortened() -> None:
    line = line_of(*_record("COMMIT", branch="ab" * 500))
    assert len(line) < 120


@pytest.mark.parametrize("evil", ["\x1b[31m", "\r\n", "\0", "\u202e", "\x9b"])
def test_nothing_reaches_a_terminal_that_is_not_printable(evil: str) -> None:
    name = f"a{evil}b"
    items = [
        _record("QUEUE_DELETED", queue=name),
        _record("CONSUMER_DROPPED", consumer=name),
        _record("RESERVED", consumer=name, number=2, queue=name, messages=1, keys=[(4, 4)]),
        _record("QUEUE_SET", queue=name, settings={}),
        _record(
            "COMMITTED",
            branch="ab",
            stored=[STORED | {"queue": name}],
            taken=[TAKEN | {"queue": name}],
            marks={name: 1},
        ),
        ("run", RUN | {"holds": "message", "queue": name, "live": 1}),
        ("run", RUN | {"holds": "bundle", "queue": name, "live": 1}),
        ("payload", {"key": 7, "queue": name, "bytes": 1, "shown": "x", "is_cut": False}),
        ("finding", {"severity": "notice", "file": name, "offset": 1, "lsn": 2, "what": name}),
        ("stop", {"why": name}),
    ]
    for item in items:
        assert line_of(*item).isprintable()


def test_what_is_printable_stays_as_it_is() -> None:
    assert printable("Aufträge 注文") == "Aufträge 注文"


def test_numbers_have_their_noun() -> None:
    assert [counted(number, "page") for number in (0, 1, 2000)] == [
        "0 pages",
        "1 page",
        "2,000 pages",
    ]
