"""Probes measure the real machine and leave nothing behind; a database answers through rows."""

import os
import socket
import stat
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from clients import probes
from clients.machine import Java, Port, Postgres


def test_a_whole_examination_leaves_the_directory_as_it_was(tmp_path: Path) -> None:
    measured = probes.examine(tmp_path / "data", [], None, {})
    assert list(tmp_path.iterdir()) == []
    assert measured.postgres is None
    assert measured.directory.nearest == str(tmp_path)
    assert abs(measured.clock.jump_s) < 60


def test_python_is_the_one_that_runs_this() -> None:
    assert probes.probe_python().version == sys.version_info[:3]


def test_required_libraries_are_read_from_the_project_and_found() -> None:
    libraries = probes.probe_libraries()
    assert libraries is not None
    found = {library.name: library.installed for library in libraries}
    assert found["typer"]
    assert "pyspark" not in found


def test_a_distribution_that_is_not_there_has_no_version() -> None:
    assert probes.installed_version("oncemq-no-such-thing") is None


def _program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_java_home_goes_before_the_path(tmp_path: Path) -> None:
    chosen = _program(tmp_path / "jdk" / "bin" / "java", "echo 'version \"21.0.1\"' >&2")
    _program(tmp_path / "bin" / "java", "echo 'version \"8\"' >&2")
    environment = {"JAVA_HOME": str(tmp_path / "jdk"), "PATH": str(tmp_path / "bin")}
    expected = Java(str(tmp_path / "jdk"), str(chosen), 'version "21.0.1"\n')
    assert probes.probe_java(environment) == expected


def test_java_is_looked_for_on_the_path(tmp_path: Path) -> None:
    chosen = _program(tmp_path / "java", "echo 'version \"17.0.2\"'")
    expected = Java(None, str(chosen), 'version "17.0.2"\n')
    assert probes.probe_java({"PATH": str(tmp_path)}) == expected


def test_a_java_home_without_java_hides_the_path(tmp_path: Path) -> None:
    _program(tmp_path / "java", "echo 'version \"17.0.2\"'")
    environment = {"JAVA_HOME": str(tmp_path / "gone"), "PATH": str(tmp_path)}
    assert probes.probe_java(environment) == Java(str(tmp_path / "gone"), None)


def test_a_java_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "JAVA_TIMEOUT_S", 0.2)
    hanging = _program(tmp_path / "java", "exec /bin/sleep 30")
    assert probes.probe_java({"PATH": str(tmp_path)}) == Java(None, str(hanging))


def test_a_directory_that_does_not_exist_is_measured_at_its_nearest_parent(tmp_path: Path) -> None:
    directory = probes.probe_directory(tmp_path / "not" / "yet")
    assert directory.path == str(tmp_path / "not" / "yet")
    assert directory.nearest == str(tmp_path)
    assert directory.is_directory
    assert directory.is_writable


def test_a_file_in_the_way_is_seen(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    directory = probes.probe_directory(tmp_path / "file" / "data")
    assert directory.nearest == str(tmp_path / "file")
    assert not directory.is_directory


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/mounts")
def test_the_kernel_s_own_file_system_is_recognised() -> None:
    assert probes.probe_directory(Path("/proc")).file_system == "proc"


def test_forced_writes_are_timed_one_by_one(tmp_path: Path) -> None:
    sync = probes.probe_sync(tmp_path)
    assert sync.error == ""
    assert 1 <= len(sync.seconds) <= probes.SYNC_COUNT
    assert all(seconds > 0 for seconds in sync.seconds)
    assert list(tmp_path.iterdir()) == []


def test_a_slow_disk_is_not_measured_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "SYNC_BUDGET_S", 0.0)
    assert len(probes.probe_sync(tmp_path).seconds) == 1


def test_a_place_that_cannot_be_written_is_a_fact_and_no_exception(tmp_path: Path) -> None:
    sync = probes.probe_sync(tmp_path / "gone")
    assert sync.seconds == ()
    assert sync.error == os.strerror(2)
    assert probes.probe_space(tmp_path / "gone") is None


def test_space_and_limits_are_plausible(tmp_path: Path) -> None:
    space = probes.probe_space(tmp_path)
    assert space is not None
    assert 0 <= space.free_bytes <= space.total_bytes
    limit = probes.probe_open_files()
    assert limit is not None
    assert limit.soft is None or limit.soft > 0


def test_a_port_is_used_while_somebody_listens_and_free_afterwards() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        number = int(listener.getsockname()[1])
        assert probes.probe_port(number) == Port(number, is_used=True)
    assert probes.probe_port(number) == Port(number)


def test_a_server_is_read_through_rows() -> None:
    rows: dict[str, list[tuple[Any, ...]]] = {
        probes.SETTINGS_QUERY: [
            ("server_version", "15.18 (Debian 15.18-0+deb12u1)"),
            ("max_prepared_transactions", "64"),
            ("fsync", "on"),
        ],
        probes.PREPARED_QUERY: [(2, Decimal("90.5"))],
        probes.CLOCK_QUERY: [(Decimal("1010.5"),)],
    }
    times = iter([1000.0, 1001.0])
    assert probes.read_postgres("shop on db", rows.__getitem__, lambda: next(times)) == Postgres(
        "shop on db",
        version="15.18",
        settings={"max_prepared_transactions": "64", "fsync": "on"},
        prepared_count=2,
        prepared_age_s_max=90.5,
        clock_ahead_s=10.0,
    )


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql+psycopg://me:tops3cret@127.0.0.1/shop",
        "postgresql://me:to@ps3cret@127.0.0.1/shop",
        "postgresql://me:to/ps3cret@127.0.0.1/shop",
        "postgresql://me:%zztops3cret@127.0.0.1/shop",
        "host=127.0.0.1 password=top s3cret",
    ],
)
def test_a_connection_string_that_is_misread_is_never_quoted(dsn: str) -> None:
    pytest.importorskip("psycopg")
    assert probes.probe_postgres(dsn) == Postgres("", is_readable=False)


def test_a_server_that_does_not_answer_is_a_fact_without_the_password() -> None:
    pytest.importorskip("psycopg")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    facts = probes.probe_postgres(f"postgresql://me:tops3cret@127.0.0.1:{port}/shop")
    assert facts.target == f"shop on 127.0.0.1:{port}"
    assert "refused" in facts.error
    assert "tops3cret" not in repr(facts)


def test_a_missing_driver_is_a_fact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    assert probes.probe_postgres("postgresql://db/shop") == Postgres("", has_driver=False)
