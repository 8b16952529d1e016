"""Judgement of the optional parts: Java, Spark and PostgreSQL, by literal facts."""

from dataclasses import replace

import pytest

from clients import extras
from clients.findings import Finding, Status
from clients.machine import Java, Postgres, Spark

NO_SPARK = Spark(None, None)
SPARK = Spark("4.2.0", "18.0.0")
UNNEEDED = "Not needed unless you run Spark pipelines, which want Java 17 or newer."
NEEDED = "Spark is installed and will not start without Java 17 or newer."
INSTALL_JAVA = ("apt-get install default-jre-headless",)
INSTALL_SPARK = ('python -m pip install "oncemq[spark]"',)
SERVER = Postgres(
    "shop on db:5432",
    version="15.18",
    settings={
        "max_prepared_transactions": "64",
        "fsync": "on",
        "synchronous_commit": "on",
        "full_page_writes": "on",
    },
)
LOOK = ("SELECT gid, prepared, owner, database FROM pg_prepared_xacts;",)


def test_java_that_is_new_enough_is_shown_with_its_place() -> None:
    java = Java(None, "/usr/bin/java", 'openjdk version "17.0.15" 2025-04-15\n')
    expected = Finding("java", Status.OK, "Java 17.0.15 (/usr/bin/java)")
    assert extras.judge_java(java, NO_SPARK) == expected


@pytest.mark.parametrize(
    ("java", "found", "more", "commands"),
    [
        (
            Java(None, None),
            "not found, neither by JAVA_HOME nor on the PATH",
            "",
            INSTALL_JAVA,
        ),
        (
            Java("/opt/jdk", None),
            "JAVA_HOME is /opt/jdk, which has no bin/java",
            " Correct JAVA_HOME or unset it: once set, Spark looks nowhere else.",
            ("unset JAVA_HOME",),
        ),
        (
            Java(None, "/usr/bin/java", "Unable to locate a Java Runtime."),
            "/usr/bin/java does not tell its version",
            "",
            INSTALL_JAVA,
        ),
        (
            Java(None, "/usr/bin/java", 'java version "1.8.0_392"'),
            "Java 1.8.0_392 (/usr/bin/java) is too old for Spark",
            "",
            INSTALL_JAVA,
        ),
    ],
)
def test_a_fault_in_java_matters_only_where_spark_is_installed(
    java: Java, found: str, more: str, commands: tuple[str, ...]
) -> None:
    without = Finding("java", Status.NOT_NEEDED, found, f"{UNNEEDED}{more}", commands)
    assert extras.judge_java(java, NO_SPARK) == without
    with_spark = Finding("java", Status.WARNING, found, f"{NEEDED}{more}", commands)
    assert extras.judge_java(java, SPARK) == with_spark


@pytest.mark.parametrize(
    ("spark", "finding"),
    [
        (SPARK, Finding("spark", Status.OK, "pyspark 4.2.0, pyarrow 18.0.0")),
        (
            NO_SPARK,
            Finding(
                "spark",
                Status.NOT_NEEDED,
                "pyspark is not installed",
                "Not needed unless you run Spark pipelines.",
                INSTALL_SPARK,
            ),
        ),
        (
            Spark("4.1.2", None),
            Finding(
                "spark",
                Status.WARNING,
                "pyspark 4.1.2 is older than 4.2; pyarrow is missing",
                "Spark pipelines will not work until this is put right.",
                INSTALL_SPARK,
            ),
        ),
    ],
)
def test_spark_is_optional_but_old_spark_is_a_warning(spark: Spark, finding: Finding) -> None:
    assert extras.judge_spark(spark) == finding


def test_no_server_named_means_no_server_needed() -> None:
    advice = "Not needed unless a database takes part; give its address with --postgres."
    expected = Finding("postgresql", Status.NOT_NEEDED, "no server was named", advice)
    assert extras.judge_postgres(None) == [expected]


def test_a_sound_server_passes_all_three_checks() -> None:
    assert extras.judge_postgres(SERVER) == [
        Finding("postgresql", Status.OK, "PostgreSQL 15.18, shop on db:5432"),
        Finding("postgresql 2pc", Status.OK, "0 of 64 places for prepared transactions taken"),
        Finding(
            "postgresql sync", Status.OK, "fsync on, synchronous_commit on, full_page_writes on"
        ),
    ]


@pytest.mark.parametrize(
    ("server", "finding"),
    [
        (
            Postgres("", has_driver=False),
            Finding(
                "postgresql",
                Status.PROBLEM,
                "the library psycopg is missing or cannot be loaded",
                "Install the extra that brings it.",
                ('python -m pip install "oncemq[postgres]"',),
            ),
        ),
        (
            Postgres("", is_readable=False),
            Finding(
                "postgresql",
                Status.PROBLEM,
                "the connection string cannot be understood; it is not shown, as it may hold a "
                "password",
                "Write it as postgresql://USER@HOST:5432/DATABASE. Special characters in a "
                "password are percent-encoded (@ is %40, / is %2F); better, leave it to PGPASSWORD "
                "or ~/.pgpass.",
            ),
        ),
        (
            Postgres("shop on db", error="Connection refused"),
            Finding(
                "postgresql",
                Status.PROBLEM,
                "Connection refused",
                "See that the server runs, that this address is right and this user may connect.",
            ),
        ),
    ],
)
def test_a_server_that_cannot_be_asked_is_one_problem(server: Postgres, finding: Finding) -> None:
    assert extras.judge_postgres(server) == [finding]


def _with(**settings: str) -> Postgres:
    return replace(SERVER, settings={**SERVER.settings, **settings})


@pytest.mark.parametrize(
    ("server", "finding"),
    [
        (
            _with(max_prepared_transactions="0"),
            Finding(
                "postgresql 2pc",
                Status.PROBLEM,
                "max_prepared_transactions is 0, so this server cannot prepare a transaction",
                "Run this as a superuser, then restart PostgreSQL; a reload is not enough:",
                ("ALTER SYSTEM SET max_prepared_transactions = 64;",),
            ),
        ),
        (
            replace(SERVER, prepared_count=64),
            Finding(
                "postgresql 2pc",
                Status.PROBLEM,
                "64 of 64 places for prepared transactions taken",
                "End the prepared transactions that nobody owns, or make more places and restart:",
                LOOK,
            ),
        ),
        (
            replace(SERVER, prepared_count=1, prepared_age_s_max=3 * 3600.0),
            Finding(
                "postgresql 2pc",
                Status.WARNING,
                "1 of 64 places for prepared transactions taken, the oldest for 3 h",
                "It holds its locks and keeps VACUUM from cleaning up. Find out whose it is:",
                LOOK,
            ),
        ),
    ],
)
def test_the_server_must_be_able_to_prepare_and_leave_nothing_prepared(
    server: Postgres, finding: Finding
) -> None:
    assert extras.judge_prepared(server) == finding


UNDURABLE = (
    "A crash could lose or damage what was committed. Run this as a superuser, and see that no "
    "role, database or connection string sets it again:"
)


@pytest.mark.parametrize("setting", extras.DURABILITY_SETTINGS)
def test_each_durability_setting_that_is_off_is_a_problem(setting: str) -> None:
    expected = Finding(
        "postgresql sync",
        Status.PROBLEM,
        f"{setting} is off",
        UNDURABLE,
        (f"ALTER SYSTEM SET {setting} = on;", "SELECT pg_reload_conf();"),
    )
    assert extras.judge_durability(_with(**{setting: "off"})) == expected


def test_several_settings_that_are_off_are_named_together() -> None:
    finding = extras.judge_durability(_with(fsync="off", full_page_writes="off"))
    assert finding.found == "fsync and full_page_writes are off"
    assert len(finding.commands) == 3


def test_a_weaker_replication_guarantee_is_not_called_off() -> None:
    finding = extras.judge_durability(_with(synchronous_commit="local"))
    assert finding.status is Status.OK
