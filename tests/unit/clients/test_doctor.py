"""Judgement by literal facts: for each thing that may be found, the status and the very words."""

from dataclasses import replace

import pytest

from clients import doctor
from clients.findings import Finding, Status
from clients.machine import (
    Clock,
    Directory,
    Java,
    Library,
    Machine,
    OpenFiles,
    Port,
    Postgres,
    Python,
    Space,
    Spark,
    Sync,
)

NOON_S = doctor.CLOCK_EARLIEST.timestamp() + 12 * 3600
DATA = Directory("/srv/mq", "/srv/mq", file_system="ext4")
REINSTALL = ("python -m pip install --upgrade oncemq",)
SET_CLOCK = ("timedatectl set-ntp true",)

MACHINE = Machine(
    python=Python((3, 11, 0), "CPython"),
    libraries=(Library("Pyro5", "5.16", "5.17"),),
    java=Java(None, None),
    spark=Spark(None, None),
    directory=DATA,
    sync=Sync((0.001,) * 50),
    space=Space(2**30, 2**40),
    open_files=OpenFiles(1024, 4096),
    ports=(Port(7410), Port(7411)),
    postgres=None,
    clock=Clock(NOON_S),
)


def test_a_machine_without_the_optional_parts_has_neither_warning_nor_problem() -> None:
    statuses = {finding.name: finding.status.value for finding in doctor.judge(MACHINE)}
    assert statuses == {
        "python": "ok",
        "libraries": "ok",
        "data directory": "ok",
        "disk sync": "ok",
        "free space": "ok",
        "open files": "ok",
        "ports": "ok",
        "clock": "ok",
        "java": "not needed",
        "spark": "not needed",
        "postgresql": "not needed",
    }


def test_the_numbers_worth_watching_are_given_as_numbers() -> None:
    assert doctor.measured(MACHINE) == {
        "sync_median_s": 0.001,
        "sync_p99_s": 0.001,
        "free_bytes": 2**30,
        "total_bytes": 2**40,
        "open_files_limit": 1024,
    }


def test_a_number_that_could_not_be_had_is_none() -> None:
    blind = replace(MACHINE, sync=Sync((), "Permission denied"), space=None, open_files=None)
    assert set(doctor.measured(blind).values()) == {None}


@pytest.mark.parametrize(
    ("facts", "finding"),
    [
        (Python((3, 11, 2), "CPython"), Finding("python", Status.OK, "CPython 3.11.2")),
        (
            Python((3, 10, 9), "CPython"),
            Finding(
                "python",
                Status.PROBLEM,
                "CPython 3.10.9 is too old",
                "Run OnceMQ with Python 3.11 or newer.",
            ),
        ),
        (
            Python((3, 13, 0), "CPython", is_optimised=True),
            Finding(
                "python",
                Status.PROBLEM,
                "CPython 3.13.0, with assertions switched off",
                "Start Python without -O; the servers refuse to run without assertions.",
                ("unset PYTHONOPTIMIZE",),
            ),
        ),
    ],
)
def test_python_must_be_new_enough_and_keep_its_assertions(facts: Python, finding: Finding) -> None:
    assert doctor.judge_python(facts) == finding


@pytest.mark.parametrize(
    ("facts", "finding"),
    [
        (
            (Library("Pyro5", "5.16", "5.17"), Library("rich", "13.7", "15.0.0")),
            Finding("libraries", Status.OK, "Pyro5 5.17, rich 15.0.0"),
        ),
        (
            (Library("Pyro5", "5.16", None), Library("rich", "13.7", "13.6.1")),
            Finding(
                "libraries",
                Status.PROBLEM,
                "Pyro5 is missing; rich 13.6.1 is older than 13.7",
                "Bring the libraries up to date.",
                REINSTALL,
            ),
        ),
        (
            None,
            Finding(
                "libraries",
                Status.WARNING,
                "OnceMQ is not installed here, so what it requires is not known",
                "Install it.",
                REINSTALL,
            ),
        ),
    ],
)
def test_required_libraries_must_be_there_and_new_enough(
    facts: tuple[Library, ...] | None, finding: Finding
) -> None:
    assert doctor.judge_libraries(facts) == finding


@pytest.mark.parametrize(
    ("facts", "status", "found", "advice"),
    [
        (DATA, "ok", "/srv/mq, on ext4", ""),
        (replace(DATA, file_system=None), "ok", "/srv/mq", ""),
        (replace(DATA, nearest="/srv"), "ok", "/srv/mq (does not exist yet), on ext4", ""),
        (
            replace(DATA, is_directory=False),
            "problem",
            "/srv/mq is not a directory",
            "Choose a directory with --data.",
        ),
        (
            replace(DATA, nearest="/srv", is_writable=False),
            "problem",
            "/srv cannot be written to by this user",
            "Choose another directory with --data, or change who may write there.",
        ),
        (
            replace(DATA, file_system="tmpfs"),
            "warning",
            "/srv/mq, on tmpfs: kept in memory only",
            "Use it for tests; messages there do not survive a restart.",
        ),
        (
            replace(DATA, file_system="overlay"),
            "warning",
            "/srv/mq, on overlay: a container's own layer",
            "Mount a volume: this layer goes when the container does.",
        ),
        *(
            (
                replace(DATA, file_system=kind),
                "warning",
                f"/srv/mq, on {kind}: a shared or network file system",
                "Prefer a local disk; here locks and forced writes are only as good as the other "
                "side.",
            )
            for kind in ("nfs", "nfs4", "cifs", "9p", "virtiofs")
        ),
    ],
)
def test_data_must_lie_where_it_can_be_written_and_survives(
    facts: Directory, status: str, found: str, advice: str
) -> None:
    expected = Finding("data directory", Status(status), found, advice)
    assert doctor.judge_directory(facts) == expected


@pytest.mark.parametrize(
    ("facts", "status", "found", "advice"),
    [
        (
            Sync((0.0005,) * 49 + (0.0021,)),
            "ok",
            "median 500 µs, p99 2.1 ms per forced 4 KiB write",
            "",
        ),
        (
            Sync((19e-6,) * 50),
            "warning",
            "median 19 µs, p99 19 µs per forced 4 KiB write, suspiciously fast",
            "This disk or file system may not really sync: a power cut could lose what was "
            "committed. Put the data on a local disk that does.",
        ),
        (
            Sync((0.03,) * 50),
            "warning",
            "median 30 ms, p99 30 ms per forced 4 KiB write, which is slow",
            "Each commit waits for one sync. Prefer a solid-state disk for the data directory.",
        ),
        (
            Sync((0.001,) * 49 + (0.7,)),
            "warning",
            "median 1 ms, p99 700 ms per forced 4 KiB write, so it stalls",
            "See what else keeps this disk busy: now and then a commit will wait as long.",
        ),
        (
            Sync((), "Permission denied"),
            "problem",
            "could not be measured: Permission denied",
            "Choose with --data a directory that can be written to.",
        ),
    ],
)
def test_a_forced_write_takes_as_long_as_an_honest_disk_takes(
    facts: Sync, status: str, found: str, advice: str
) -> None:
    assert doctor.judge_sync(facts) == Finding("disk sync", Status(status), found, advice)


def test_a_sync_at_the_very_limit_is_not_suspicious() -> None:
    assert doctor.judge_sync(Sync((doctor.SYNC_MEDIAN_S_MIN,))).status is Status.OK


@pytest.mark.parametrize(
    ("facts", "status", "found", "advice"),
    [
        (Space(2**30, 2**40), "ok", "1.0 GiB of 1.0 TiB free", ""),
        (
            Space(2**30 - 1, 2**40),
            "warning",
            "1024 MiB of 1.0 TiB free",
            "Make room, or choose a larger disk with --data; a full disk stops every commit.",
        ),
        (
            Space(99 * 2**20, 2**40),
            "problem",
            "99 MiB of 1.0 TiB free",
            "Make room, or choose a larger disk with --data; a full disk stops every commit.",
        ),
        (
            None,
            "warning",
            "could not be read",
            "Choose with --data a directory that can be read.",
        ),
    ],
)
def test_there_must_be_room_for_the_data_to_grow(
    facts: Space | None, status: str, found: str, advice: str
) -> None:
    assert doctor.judge_space(facts) == Finding("free space", Status(status), found, advice)


FEW = "limit 256, fewer than 1,024: many clients would be turned away"


@pytest.mark.parametrize(
    ("facts", "finding"),
    [
        (OpenFiles(1024, 4096), Finding("open files", Status.OK, "limit 1,024")),
        (OpenFiles(None, None), Finding("open files", Status.OK, "unlimited")),
        (
            None,
            Finding("open files", Status.NOT_NEEDED, "this system has no such limit to read"),
        ),
        *(
            (
                OpenFiles(256, hard),
                Finding(
                    "open files",
                    Status.WARNING,
                    FEW,
                    "Raise it in the shell that starts OnceMQ.",
                    (command,),
                ),
            )
            for hard, command in (
                (2048, "ulimit -n 2048"),
                (1_048_576, "ulimit -n 4096"),
                (None, "ulimit -n 4096"),
            )
        ),
        (
            OpenFiles(256, 512),
            Finding(
                "open files",
                Status.WARNING,
                FEW,
                "Ask the administrator to raise the hard limit, which is 512.",
            ),
        ),
    ],
)
def test_enough_files_may_be_open_at_once(facts: OpenFiles | None, finding: Finding) -> None:
    assert doctor.judge_open_files(facts) == finding


@pytest.mark.parametrize(
    ("facts", "finding"),
    [
        (
            (Port(7410), Port(7411), Port(9000)),
            Finding("ports", Status.OK, "7410 (coordinator) free, 7411 (node) free, 9000 free"),
        ),
        (
            (Port(7410), Port(7411, is_used=True)),
            Finding(
                "ports",
                Status.WARNING,
                "7410 (coordinator) free, 7411 (node) in use",
                "By whom is not known. If OnceMQ runs already, all is well; otherwise choose "
                "another port with --listen. To see who listens:",
                ("ss -ltnp 'sport = :7411'",),
            ),
        ),
        (
            (Port(80, error="Permission denied"),),
            Finding(
                "ports",
                Status.PROBLEM,
                "80 refused (Permission denied)",
                "Choose another port with --listen; those below 1024 belong to the system.",
            ),
        ),
    ],
)
def test_ports_must_be_free_but_a_used_one_is_only_a_warning(
    facts: tuple[Port, ...], finding: Finding
) -> None:
    assert doctor.judge_ports(facts) == finding


@pytest.mark.parametrize(
    ("clock", "ahead_s", "finding"),
    [
        (Clock(NOON_S), 4.9, Finding("clock", Status.OK, "2026-01-01 12:00:00 UTC")),
        (
            Clock(0.0),
            0.0,
            Finding(
                "clock",
                Status.PROBLEM,
                "1970-01-01 00:00:00 UTC cannot be right",
                "Set the clock, and keep it set by a time service.",
                SET_CLOCK,
            ),
        ),
        (
            Clock(NOON_S, jump_s=-3.0),
            0.0,
            Finding(
                "clock",
                Status.WARNING,
                "2026-01-01 12:00:00 UTC; it jumped by -3.0 s during this check",
                "Let a time service slew the clock: message times follow it.",
                SET_CLOCK,
            ),
        ),
        (
            Clock(NOON_S),
            -60.0,
            Finding(
                "clock",
                Status.WARNING,
                "2026-01-01 12:00:00 UTC; the PostgreSQL server's differs by -60.0 s",
                "Have both machines follow a time service.",
                SET_CLOCK,
            ),
        ),
    ],
)
def test_the_clock_must_be_plausible_steady_and_shared(
    clock: Clock, ahead_s: float, finding: Finding
) -> None:
    server = Postgres("shop on db", clock_ahead_s=ahead_s)
    assert doctor.judge_clock(clock, server) == finding


def test_a_clock_beyond_this_century_cannot_be_right() -> None:
    finding = doctor.judge_clock(Clock(doctor.CLOCK_LATEST.timestamp() + 1), None)
    assert finding.status is Status.PROBLEM
