"""Databases that could lose what they have acknowledged are refused, and each node is one process.

What they are refused for is told with the name of the setting, and without any password.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from mqserver.errors import StorageError, StorageLocked
from mqserver.storage.sql import SqlStorage
from tests import postgres


def _open(url: str) -> SqlStorage:
    return SqlStorage(url, "node", time.monotonic)


# --- SQLite --------------------------------------------------------------------------------------


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    """The address of a file that is not there yet."""
    return f"sqlite:///{tmp_path / 'queues.db'}"


def _stubborn(wish: str, instead: str) -> type[sqlite3.Connection]:
    """A connection of a SQLite that does something else instead of what is wished."""

    class Stubborn(sqlite3.Connection):
        def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
            return super().execute(sql.replace(wish, instead), *parameters)

    return Stubborn


@pytest.mark.parametrize(
    ("wish", "instead", "told"),
    [
        ("journal_mode=WAL", "journal_mode=DELETE", "journal mode 'delete'"),
        ("journal_mode=WAL", "journal_mode=MEMORY", "journal mode 'memory'"),
        ("synchronous=FULL", "synchronous=NORMAL", "synchronous=FULL"),
        ("synchronous=FULL", "synchronous=OFF", "synchronous=FULL"),
    ],
)
def test_a_sqlite_that_does_not_grant_what_is_needed_is_refused(
    file_url: str, monkeypatch: pytest.MonkeyPatch, wish: str, instead: str, told: str
) -> None:
    connect, kind = sqlite3.dbapi2.connect, _stubborn(wish, instead)
    monkeypatch.setattr(
        sqlite3.dbapi2, "connect", lambda *name, **rest: connect(*name, factory=kind, **rest)
    )
    with pytest.raises(StorageError, match=told):
        _open(file_url)


def test_a_file_in_an_unsafe_journal_mode_is_brought_into_a_safe_one(
    file_url: str, tmp_path: Path
) -> None:
    before = sqlite3.connect(tmp_path / "queues.db")
    assert before.execute("PRAGMA journal_mode=DELETE").fetchone() == ("delete",)
    before.execute("CREATE TABLE others (name TEXT)")
    before.close()
    _open(file_url).close()
    after = sqlite3.connect(tmp_path / "queues.db")
    assert after.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    after.close()


@pytest.mark.parametrize(
    "url", ["sqlite://", "sqlite:///:memory:", "sqlite:///file:x?mode=memory&uri=true"]
)
def test_a_database_in_memory_is_refused(url: str) -> None:
    with pytest.raises(StorageError, match="needs a file"):
        _open(url)


def test_nobody_else_may_read_the_file(file_url: str, tmp_path: Path) -> None:
    storage = _open(file_url)
    modes = {path.stat().st_mode & 0o077 for path in tmp_path.iterdir()}
    storage.close()
    assert modes == {0}


# --- PostgreSQL ----------------------------------------------------------------------------------


@pytest.fixture
def cluster(missing: Callable[[str], NoReturn]) -> postgres.Cluster:
    """The PostgreSQL of this process."""
    try:
        return postgres.cluster()
    except postgres.NoPostgres as error:
        missing(f"postgres: {error}")


@pytest.fixture
def changed(cluster: postgres.Cluster) -> Iterator[Callable[[str, str], None]]:
    """A function that changes a setting of the whole server, until the test is over."""

    def change(name: str, value: str) -> None:
        cluster.execute(f"ALTER SYSTEM SET {name} = {value}")
        _reload(cluster, name, value)

    yield change
    cluster.execute("ALTER SYSTEM RESET ALL")
    _reload(cluster, "fsync", "on")


def _reload(cluster: postgres.Cluster, name: str, value: str) -> None:
    cluster.execute("SELECT pg_reload_conf()")
    deadline = time.monotonic() + 10
    # The server takes the settings up a moment later.
    while cluster.execute("SELECT current_setting(%s)", name) != [(value,)]:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("name", ["fsync", "full_page_writes", "synchronous_commit"])
def test_a_server_that_loses_what_it_acknowledges_is_refused(
    cluster: postgres.Cluster, changed: Callable[[str, str], None], name: str
) -> None:
    changed(name, "off")
    with pytest.raises(StorageError, match=f"{name} = off") as refused:
        _open(cluster.place())
    assert _password(cluster) not in str(refused.value)


@pytest.mark.parametrize("level", ["off", "local"])
def test_a_connection_that_does_not_wait_is_refused(cluster: postgres.Cluster, level: str) -> None:
    with pytest.raises(StorageError, match=f"synchronous_commit = {level}"):
        _open(f"{cluster.place()}%20-csynchronous_commit%3D{level}")


def test_a_setting_that_becomes_unsafe_is_seen_by_the_next_connection(
    cluster: postgres.Cluster, changed: Callable[[str, str], None]
) -> None:
    place = f"{cluster.place()}&application_name=unsafe"
    storage = _open(place)
    changed("fsync", "off")
    cluster.disconnect("unsafe")
    for _ in range(3):
        with pytest.raises(StorageError):
            storage.queues()
    with pytest.raises(StorageError, match="fsync = off"):
        storage.queues()
    changed("fsync", "on")
    assert storage.queues() == []
    storage.close()


def test_what_is_said_of_a_server_has_no_password(cluster: postgres.Cluster) -> None:
    place = cluster.place()
    wrong = place.replace(_password(cluster), "wrong-secret")
    with pytest.raises(StorageError) as refused:
        _open(wrong)
    assert "wrong-secret" not in str(refused.value)


def _password(cluster: postgres.Cluster) -> str:
    return cluster.dsn.partition("oncemq:")[2].partition("@")[0]


# --- Both ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_node_is_one_process_at_a_time(request: pytest.FixtureRequest, kind: str) -> None:
    if kind == "sqlite":
        url = request.getfixturevalue("file_url")
    else:
        url = request.getfixturevalue("cluster").place()
    first = _open(url)
    with pytest.raises(StorageLocked, match="'node' runs already"):
        _open(url)
    other = SqlStorage(url, "other", time.monotonic)
    first.close()
    _open(url).close()
    other.close()
