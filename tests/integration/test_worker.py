"""A worker on real databases: what becomes of messages, rows and replies when things go wrong."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, NoReturn

import psycopg
import pytest
import sqlalchemy

import oncemq
from tests.integration.enlisting import File, Gone, Rows, die, eventually, payloads
from tests.integration.mariadb_rows import MariadbRows
from tests.postgres import Cluster

pytest_plugins = ["tests.integration.database_fixtures"]

ROW = "INSERT INTO rows VALUES (?)"


def store(message: oncemq.Message, db: Any) -> bytes | None:
    """Stores the payload, and fails for what begins with "bad"."""
    db.execute(ROW, [message.payload.decode()])
    if message.payload.startswith(b"bad"):
        raise ValueError(f"cannot be done: {message.payload!r}")
    return b"done: " + message.payload


# --- One act -------------------------------------------------------------------------------------


def test_message_row_and_reply_are_one_act(mq: oncemq.Connection, file: File) -> None:
    queue = mq.queue("q")
    key = queue.put(b"x", attributes=[("reply_to", "answers")])
    queue.put(b"y", attributes=[("reply_to", "answers"), ("correlation", "7")])
    queue.put(b"z")
    seen: list[tuple[int, int]] = []

    @oncemq.worker(queue, file.connect)
    def handle(message: oncemq.Message, db: Any) -> bytes | None:
        """Handles."""
        seen.append((len(queue), len(mq.queue("answers"))))
        return store(message, db)

    assert handle.__doc__ == "Handles."
    assert handle.run(timeout=0).committed == 3
    assert file.found() == ["x", "y", "z"]
    assert payloads(mq) == []
    answers = {each.payload: each.get("correlation") for each in mq.queue("answers").browse()}
    assert answers == {b"done: x": str(key), b"done: y": "7"}
    # What was taken and what was put before is seen; what the function does itself is not yet.
    assert seen == [(2, 0), (1, 1), (0, 2)]


def test_replies_can_have_a_queue_of_their_own(mq: oncemq.Connection, file: File) -> None:
    mq.queue("q").put(b"x", attributes=[("reply_to", "elsewhere")])

    def answer(message: oncemq.Message, db: Any) -> oncemq.Message:
        return oncemq.Message(b"answer", priority=3)

    oncemq.worker(mq.queue("q"), file.connect, replies="answers")(answer).run(timeout=0)
    assert [each.priority for each in mq.queue("answers").browse()] == [3]
    assert payloads(mq, "elsewhere") == []


def test_an_engine_and_two_phase_commit_do_as_well(mq: oncemq.Connection, server: Cluster) -> None:
    rows = Rows(server)
    rows.register(mq)
    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=rows.connect)
    mq.queue("q").put_many([b"x", b"bad", b"y"])

    @oncemq.worker(mq.queue("q"), engine, failures_max=1)
    def handle(message: oncemq.Message, db: sqlalchemy.Connection) -> None:
        values = {"p": message.payload.decode()}
        db.execute(sqlalchemy.text("INSERT INTO rows VALUES (:p)"), values)
        if message.payload == b"bad":
            raise ValueError

    assert handle.run(timeout=0) == oncemq.Worked(committed=2, failed=1, dead=1)
    assert rows.found() == ["x", "y"]
    assert rows.prepared() == 0
    engine.dispose()


# --- Messages that fail --------------------------------------------------------------------------


def test_a_poison_message_stops_nobody_and_ends_among_the_dead_letters(
    mq: oncemq.Connection, file: File
) -> None:
    queue = mq.queue("q")
    key = queue.put(b"bad", priority=2, group=7, attributes=[("kind", "a")], sender="me")
    queue.put_many([b"x", b"y"])
    order: list[str] = []

    @oncemq.worker(queue, file.connect, failures_max=3)
    def handle(message: oncemq.Message, db: Any) -> bytes | None:
        order.append(f"{message.payload.decode()} {message.get('oncemq.failures')}".strip())
        return store(message, db)

    worked = handle.run(timeout=0)
    assert worked == oncemq.Worked(committed=2, failed=3, dead=1)
    assert order == ["bad", "x", "y", "bad 1", "bad 2"]
    assert file.found() == ["x", "y"]
    assert payloads(mq) == []
    [dead] = mq.queue("q.dlq").browse()
    assert (dead.payload, dead.priority, dead.group, dead.sender) == (b"bad", 2, 7, "me")
    assert dict(dead.attributes) == {
        "kind": "a",
        "oncemq.failures": "3",
        "oncemq.reason": "ValueError: cannot be done: b'bad'",
        "oncemq.queue": "q",
        "oncemq.key": str(key),
    }


def test_a_statement_that_failed_unnoticed_counts(mq: oncemq.Connection, server: Cluster) -> None:
    rows = Rows(server)
    rows.register(mq)
    mq.queue("q").put(b"x")

    @oncemq.worker(mq.queue("q"), rows.connect, failures_max=1, dead_letters="dead")
    def handle(message: oncemq.Message, db: psycopg.Connection[Any]) -> None:
        with pytest.raises(psycopg.Error):
            db.execute("SELECT 1 / 0")

    assert handle.run(timeout=0) == oncemq.Worked(failed=1, dead=1)
    [dead] = mq.queue("dead").browse()
    assert "one of its statements has failed" in dead.get("oncemq.reason")


def test_a_crash_before_the_message_is_set_aside_leaves_it_once(
    mq: oncemq.Connection, file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    mq.queue("q").put(b"bad")
    handle = oncemq.worker(mq.queue("q"), file.connect, failures_max=1)(store)
    monkeypatch.setattr(oncemq.Transaction, "commit", die)
    with pytest.raises(Gone):
        handle.run(timeout=0)
    assert payloads(mq) == ["bad"]
    assert payloads(mq, "q.dlq") == []
    monkeypatch.undo()
    handle.run(timeout=0)
    assert payloads(mq) == []
    assert payloads(mq, "q.dlq") == ["bad"]


def test_several_workers_set_each_message_aside_once(mq: oncemq.Connection, file: File) -> None:
    good = [f"{number:02d}" for number in range(20)]
    mq.queue("q").put_many([*(each.encode() for each in good), b"bad 1", b"bad 2"])
    connect = functools.partial(file.connect, timeout=20)
    handle = oncemq.worker(mq.queue("q"), connect, failures_max=2)(store)
    found: list[oncemq.Worked] = []
    threads = [
        threading.Thread(target=lambda: found.append(handle.run(timeout=0.5))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert file.found() == good
    assert payloads(mq) == []
    assert payloads(mq, "q.dlq") == ["bad 1", "bad 2"]
    assert sum(each.committed for each in found) == 20
    assert sum(each.dead for each in found) == 2


# --- What is no fault of the message -------------------------------------------------------------


def test_a_lost_database_is_not_the_messages_fault(mq: oncemq.Connection, server: Cluster) -> None:
    rows = Rows(server)
    rows.register(mq)
    mq.queue("q").put_many([b"x", b"y"])
    calls: list[bytes] = []

    @oncemq.worker(mq.queue("q"), rows.connect, failures_max=1)
    def handle(message: oncemq.Message, db: psycopg.Connection[Any]) -> None:
        calls.append(message.payload)
        if len(calls) == 1:
            server.disconnect(rows.schema)
        db.execute("INSERT INTO rows VALUES (%s)", [message.payload.decode()])
        if len(calls) == 3:
            raise psycopg.errors.SerializationFailure("two at once")

    assert handle.run(timeout=0) == oncemq.Worked(committed=2, passing=2)
    assert rows.found() == ["x", "y"]
    assert payloads(mq) == payloads(mq, "q.dlq") == []


def test_a_connection_that_was_cut_between_two_messages_is_made_anew(
    mq: oncemq.Connection, server: Cluster
) -> None:
    rows = Rows(server)
    rows.register(mq)
    mq.queue("q").put_many([b"x", b"y"])

    def connect() -> psycopg.Connection[Any]:
        made.append(rows.connect())
        return made[-1]

    made: list[psycopg.Connection[Any]] = []

    @oncemq.worker(mq.queue("q"), connect, failures_max=1)
    def handle(message: oncemq.Message, db: psycopg.Connection[Any]) -> None:
        db.execute("INSERT INTO rows VALUES (%s)", [message.payload.decode()])
        if message.payload == b"x":
            db.execute("SET idle_session_timeout = 1")

    worked = handle.run(timeout=0.3)
    assert worked.committed == 2
    assert worked.failed == 0
    # Where the connection was cut between its vote and its commit, the coordinator commits.
    eventually(lambda: rows.found() == ["x", "y"], "both rows", lambda: rows.register(mq))
    assert all(each.closed for each in made)


def test_what_cannot_work_is_said_at_once_and_costs_no_message(
    mq: oncemq.Connection, tmp_path: Path
) -> None:
    unknown = File(tmp_path / "unknown.db")
    mq.queue("q").put(b"x")
    with pytest.raises(oncemq.NotEnlisted, match="oncemq database add NAME sqlite:///"):
        oncemq.worker(mq.queue("q"), unknown.connect)(store).run(timeout=0)

    def refuse() -> NoReturn:
        raise ConnectionRefusedError("nobody there")

    with pytest.raises(ConnectionRefusedError):
        oncemq.worker(mq.queue("q"), refuse)(store).run(timeout=0)
    assert payloads(mq) == ["x"]
    with pytest.raises(ValueError, match="failures_max 0"):
        oncemq.worker(mq.queue("q"), refuse, failures_max=0)(store)
    with pytest.raises(ValueError, match="queue name"):
        oncemq.worker(mq.queue("q"), refuse, dead_letters="no name")(store)


def test_a_worker_on_mariadb_does_all_of_that_too(
    mq: oncemq.Connection, maria: MariadbRows
) -> None:
    queue = mq.queue("q")
    queue.put(b"x", attributes=[("reply_to", "answers")])
    queue.put_many([b"bad", b"y"])
    calls: list[bytes] = []

    @oncemq.worker(queue, maria.connect, failures_max=2)
    def handle(message: oncemq.Message, db: Any) -> bytes:
        calls.append(message.payload)
        db.cursor().execute("INSERT INTO noted VALUES (%s)", [message.payload.decode()])
        if message.payload == b"bad":
            raise ValueError("cannot be done")
        if len(calls) == 1:
            # Not the message's fault: it is tried again, with a new connection.
            maria.server.disconnect(db)
            db.cursor().execute("SELECT 1")
        return b"done: " + message.payload

    assert handle.run(timeout=0) == oncemq.Worked(committed=2, failed=2, dead=1, passing=1)
    assert maria.found() == ["x", "y"]
    assert payloads(mq) == []
    assert payloads(mq, "q.dlq") == ["bad"]
    assert payloads(mq, "answers") == ["done: x"]


# --- The worker is gone --------------------------------------------------------------------------

PROGRAM = """
import os, signal, sqlite3, sys
import oncemq
folder, path = sys.argv[1:]
mq = oncemq.connect("file:" + folder)
mq.register_database("stock", "sqlite:///" + path, grace=0.2)
mq.queue("q").put_many([b"x", b"y", b"z"])

@oncemq.worker(mq.queue("q"), lambda: sqlite3.connect(path))
def handle(message, db):
    db.execute("INSERT INTO rows VALUES (?)", [message.payload.decode()])
    if message.payload == b"y":
        os.kill(os.getpid(), signal.SIGKILL)
    return b"done"

handle.run(timeout=0)
"""


def test_a_worker_that_is_killed_in_its_function_loses_nothing_and_repeats_nothing(
    tmp_path: Path,
) -> None:
    file = File(tmp_path / "stock.db")
    folder = str(tmp_path / "mq")
    died = subprocess.run(
        [sys.executable, "-c", PROGRAM, folder, str(file.path)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert died.returncode == -signal.SIGKILL
    with oncemq.connect(f"file:{folder}") as mq:
        assert file.found() == ["x"]
        assert payloads(mq) == ["y", "z"]
        handle = oncemq.worker(mq.queue("q"), file.connect, replies="answers")(store)
        assert handle.run(timeout=0).committed == 2
        assert file.found() == ["x", "y", "z"]
        assert payloads(mq, "answers") == ["done: y", "done: z"]
