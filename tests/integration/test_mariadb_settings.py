"""MariaDB with settings that a real one has: TLS, which it asks for, and its binary log."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import oncemq
from clients.branches import Branch
from clients.mariadb_driver import MariadbDriver
from tests.integration.enlisting import (
    GRACE_S,
    Gone,
    die,
    eventually,
    in_doubt,
    payloads,
)
from tests.integration.mariadb_rows import ROW, Conn, MariadbRows
from tests.mariadb import Server
from tests.security.authority import HERE, SERVER, Authority

pytest_plugins = ["tests.integration.database_fixtures"]

SECRET = "ONCEMQ_TEST_MARIADB_GUARDED"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "authority", "authority")


@pytest.fixture(scope="module")
def mariadb(mariadb: Server, authority: Authority) -> Iterator[Server]:
    """The server, with TLS and the binary log, both as durable as they can be."""
    # For this address alone, so that it is not the certificate of "localhost".
    made = authority.issue("server", HERE[:1], (SERVER,))
    for name, path in {
        "ca": authority.certificate,
        "cert": made.certificate,
        "key": made.key,
    }.items():
        # Into its own folder, where its own user may read them.
        shutil.copyfile(path, mariadb.folder / f"{name}.pem")
    with mariadb.with_settings(
        *[f"ssl_{name} = {mariadb.folder}/{name}.pem" for name in ("ca", "cert", "key")],
        f"log_bin = {mariadb.folder}/binary",
        "sync_binlog = 1",
        "binlog_format = ROW",
        "server_id = 1",
    ):
        yield mariadb


@pytest.fixture
def conn(maria: MariadbRows) -> Conn:
    return maria.connect()


def act(mq: oncemq.Connection, conn: Conn, payload: str = "x") -> oncemq.Transaction:
    """A row and a message, in a transaction that is not ended yet."""
    tx = mq.begin()
    tx.enlist(conn).cursor().execute(ROW, [payload])
    mq.queue("q").put(payload.encode(), tx=tx)
    return tx


# --- TLS -----------------------------------------------------------------------------------------


@pytest.fixture
def guarded(mariadb: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An account that must show a certificate; its name."""
    mariadb.execute("CREATE USER guarded@127.0.0.1 IDENTIFIED BY %s REQUIRE X509", "secret")
    mariadb.execute("GRANT ALL ON *.* TO guarded@127.0.0.1")
    monkeypatch.setenv(SECRET, "secret")
    yield "guarded"
    mariadb.execute("DROP USER guarded@127.0.0.1")


def test_the_coordinator_shows_a_certificate_and_checks_that_of_the_server(
    mq: oncemq.Connection, mariadb: Server, authority: Authority, guarded: str, tmp_path: Path
) -> None:
    rows = MariadbRows(mariadb)
    own = authority.client("coordinator")
    address = mariadb.address(rows.database, guarded)
    known = f"{address}?ssl_ca={authority.certificate}"
    shown = f"{known}&ssl_cert={own.certificate}&ssl_key={own.key}"
    mq.register_database("orders", shown, password_env=SECRET, grace=GRACE_S)
    with closing(rows.connect()) as conn:
        act(mq, conn).commit()
    assert rows.found() == payloads(mq) == ["x"]
    stranger = Authority(tmp_path / "stranger", "stranger")
    for wrong, told in {
        address: "Access denied",
        known: "Access denied",
        shown.replace(str(authority.certificate), str(stranger.certificate)): "certificate verify",
        shown.replace("127.0.0.1", "localhost"): "not valid for 'localhost'",
        shown.replace(str(own.key), "/nowhere"): "No such file",
    }.items():
        with pytest.raises(oncemq.OnceMQError, match=told):
            mq.register_database("wrong", wrong, password_env=SECRET)
    anywhere = shown.replace("127.0.0.1", "localhost") + "&ssl_verify_identity=false"
    mq.register_database("orders", anywhere, password_env=SECRET)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("ssl_mode=required", "'ssl_mode' is not known for MariaDB: use ssl_ca"),
        ("ssl_key=k&ssl_cert=c", "without ssl_ca: name the file"),
        ("ssl_ca=a&ssl_key=k", "ssl_cert and ssl_key belong together"),
        ("ssl_ca=a&ssl_verify_identity=perhaps", "ssl_verify_identity is true or false"),
        ("ssl_ca=a&ssl_key_password=k", "is not known"),
    ],
)
def test_options_that_would_leave_it_without_tls_are_refused(
    mq: oncemq.Connection, options: str, told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        mq.register_database("orders", f"mariadb://app@127.0.0.1/orders?{options}")


# --- The binary log ------------------------------------------------------------------------------


def test_with_its_binary_log_a_row_and_a_message_are_one_act(
    mq: oncemq.Connection, maria: MariadbRows, mariadb: Server, conn: Conn
) -> None:
    assert mariadb.execute("SELECT @@log_bin, @@sync_binlog") == [(1, 1)]
    act(mq, conn).commit()
    act(mq, conn, "y").rollback()
    assert maria.found() == payloads(mq) == ["x"]


def test_with_its_binary_log_what_is_prepared_outlives_a_kill_and_is_committed(
    mq: oncemq.Connection,
    maria: MariadbRows,
    mariadb: Server,
    conn: Conn,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decide = Branch.decide

    def killed_before(*arguments: object) -> object:
        mariadb.kill()
        mariadb.restart()
        return decide(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Branch, "decide", killed_before)
    act(mq, conn).commit()
    assert payloads(mq) == ["x"]
    eventually(
        lambda: maria.found() == ["x"],
        "the coordinator commits the row",
        lambda: maria.register(mq),
    )


def test_with_its_binary_log_a_kill_in_the_commit_leaves_one_outcome(
    mq: oncemq.Connection,
    maria: MariadbRows,
    mariadb: Server,
    conn: Conn,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commit_prepared = MariadbDriver.commit_prepared

    def killed_after(driver: MariadbDriver) -> None:
        commit_prepared(driver)
        mariadb.kill()
        mariadb.restart()

    monkeypatch.setattr(MariadbDriver, "commit_prepared", killed_after)
    act(mq, conn).commit()
    eventually(lambda: not in_doubt(mq), "the node has heard")
    assert maria.found() == payloads(mq) == ["x"]


def test_with_its_binary_log_what_nobody_decided_is_rolled_back_after_a_kill(
    mariadb: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = MariadbRows(mariadb)
    with oncemq.connect(f"file:{tmp_path}") as mq:
        rows.register(mq)
        tx = act(mq, rows.connect())
        monkeypatch.setattr(Branch, "decide", die)
        with pytest.raises(Gone):
            tx.commit()
        monkeypatch.undo()
        rows.close()
    mariadb.kill()
    mariadb.restart()
    assert rows.prepared() == 1
    with oncemq.connect(f"file:{tmp_path}") as mq:
        eventually(lambda: rows.prepared() == 0, "no branch is left", lambda: rows.register(mq))
        eventually(lambda: not in_doubt(mq), "the node has heard")
        assert rows.found() == payloads(mq) == []
