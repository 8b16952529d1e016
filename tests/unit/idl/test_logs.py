"""Log lines: for people or for programs, and none that a peer could have written."""

from __future__ import annotations

import json
import logging
import sys

from idl.call import Call, Principal, serve_within
from idl.logs import JsonLines, TextLines, _add_what_is_known

HOSTILE = "x\r\n2026 INFO oncemq.audit forged\x00\x1b[2J\u202e\u2028"


def _record(text: str, **extra: object) -> logging.LogRecord:
    record = logging.LogRecord("oncemq.node", logging.INFO, "f", 1, "%s", (text,), None)
    for name, value in extra.items():
        setattr(record, name, value)
    return record


def _failed() -> logging.LogRecord:
    record = _record("failed")
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        record.exc_info = sys.exc_info()
    return record


def test_a_line_for_people_has_what_is_known() -> None:
    line = TextLines().format(_record("put", queue="orders", message_key="17"))
    assert line.endswith(" INFO oncemq.node put queue=orders message_key=17")


def test_a_line_for_programs_is_one_object() -> None:
    said = json.loads(JsonLines().format(_record("put", queue="orders")))
    assert (said["text"], said["queue"], said["level"]) == ("put", "orders", "info")
    assert "principal" not in said


def test_nothing_that_a_peer_sent_begins_a_line() -> None:
    for lines in (TextLines(), JsonLines()):
        assert lines.format(_record(HOSTILE, queue=HOSTILE)).isprintable()


def test_the_lines_of_a_traceback_are_indented_or_within_the_object() -> None:
    first, *rest = TextLines().format(_failed()).split("\n")
    assert first.endswith("failed")
    assert all(line.startswith("    ") and line.isprintable() for line in rest)
    assert "ValueError" in json.loads(JsonLines().format(_failed()))["traceback"]


def test_a_record_says_who_called() -> None:
    record = _record("put", principal="")
    call = Call(bytes(16), Principal("alice"), "127.0.0.1")
    plain = _record("put")
    assert serve_within(call, _add_what_is_known, [plain]) is True
    assert " principal=alice" in TextLines().format(plain)
    assert _add_what_is_known(record) is True
