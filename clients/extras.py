"""Judges the optional parts of a machine: Java and Spark for pipelines, PostgreSQL as a database.

Pure, like `doctor.py`, which asks it. Their absence is neither a warning nor a problem. A fault in
Spark or Java is a warning, because they may be there for somebody else; a fault in a PostgreSQL
is a problem, because the user named that server.
"""

from clients.findings import Finding, Status, duration
from clients.machine import (
    Java,
    Library,
    Postgres,
    Spark,
    java_feature,
    java_version,
    library_fault,
)

LEAST_JAVA = 17
LEAST_PYSPARK = "4.2"
LEAST_PYARROW = "18"
PREPARED_AGE_S_MAX = 3600.0
# Switched off, each of these lets PostgreSQL forget what it has said is committed.
DURABILITY_SETTINGS = ("fsync", "synchronous_commit", "full_page_writes")


def judge_java(java: Java, spark: Spark) -> Finding:
    """Java is there and new enough, if Spark is there to need it."""
    need = f"Not needed unless you run Spark pipelines, which want Java {LEAST_JAVA} or newer."
    if spark.pyspark:
        need = f"Spark is installed and will not start without Java {LEAST_JAVA} or newer."
    trouble = Status.WARNING if spark.pyspark else Status.NOT_NEEDED
    install = ("apt-get install default-jre-headless",)
    if java.executable is None and java.java_home:
        found = f"JAVA_HOME is {java.java_home}, which has no bin/java"
        advice = f"{need} Correct JAVA_HOME or unset it: once set, Spark looks nowhere else."
        return Finding("java", trouble, found, advice, ("unset JAVA_HOME",))
    if java.executable is None:
        found = "not found, neither by JAVA_HOME nor on the PATH"
        return Finding("java", trouble, found, need, install)
    version = java_version(java.output)
    if version is None:
        found = f"{java.executable} does not tell its version"
        return Finding("java", trouble, found, need, install)
    if java_feature(version) < LEAST_JAVA:
        found = f"Java {version} ({java.executable}) is too old for Spark"
        return Finding("java", trouble, found, need, install)
    return Finding("java", Status.OK, f"Java {version} ({java.executable})")


def judge_spark(spark: Spark) -> Finding:
    """Spark and Arrow are new enough, if they are there at all."""
    install = ('python -m pip install "oncemq[spark]"',)
    if spark.pyspark is None:
        advice = "Not needed unless you run Spark pipelines."
        return Finding("spark", Status.NOT_NEEDED, "pyspark is not installed", advice, install)
    needed = (
        Library("pyspark", LEAST_PYSPARK, spark.pyspark),
        Library("pyarrow", LEAST_PYARROW, spark.pyarrow),
    )
    faults = [fault for library in needed if (fault := library_fault(library))]
    if faults:
        advice = "Spark pipelines will not work until this is put right."
        return Finding("spark", Status.WARNING, "; ".join(faults), advice, install)
    return Finding("spark", Status.OK, f"pyspark {spark.pyspark}, pyarrow {spark.pyarrow}")


def judge_postgres(postgres: Postgres | None) -> list[Finding]:
    """The server answers, can prepare transactions, and keeps what it has committed."""
    if postgres is None:
        advice = "Not needed unless a database takes part; give its address with --postgres."
        return [Finding("postgresql", Status.NOT_NEEDED, "no server was named", advice)]
    if unreachable := _unreachable(postgres):
        return [unreachable]
    found = f"PostgreSQL {postgres.version}, {postgres.target}"
    reached = Finding("postgresql", Status.OK, found)
    return [reached, judge_prepared(postgres), judge_durability(postgres)]


def _unreachable(postgres: Postgres) -> Finding | None:
    """Why nothing could be learnt from the server, or None when it could."""
    if not postgres.has_driver:
        install = ('python -m pip install "oncemq[postgres]"',)
        found = "the library psycopg is missing or cannot be loaded"
        advice = "Install the extra that brings it."
        return Finding("postgresql", Status.PROBLEM, found, advice, install)
    if not postgres.is_readable:
        advice = (
            "Write it as postgresql://USER@HOST:5432/DATABASE. Special characters in a password "
            "are percent-encoded (@ is %40, / is %2F); better, leave it to PGPASSWORD or ~/.pgpass."
        )
        found = (
            "the connection string cannot be understood; it is not shown, as it may hold a password"
        )
        return Finding("postgresql", Status.PROBLEM, found, advice)
    if postgres.error:
        advice = "See that the server runs, that this address is right and this user may connect."
        return Finding("postgresql", Status.PROBLEM, postgres.error, advice)
    return None


def judge_prepared(postgres: Postgres) -> Finding:
    """Transactions can be prepared, a place is free, and none has been left behind."""
    name = "postgresql 2pc"
    slots = int(postgres.settings.get("max_prepared_transactions", "0"))
    set_slots = "ALTER SYSTEM SET max_prepared_transactions = 64;"
    if slots == 0:
        found = "max_prepared_transactions is 0, so this server cannot prepare a transaction"
        advice = "Run this as a superuser, then restart PostgreSQL; a reload is not enough:"
        return Finding(name, Status.PROBLEM, found, advice, (set_slots,))
    taken = f"{postgres.prepared_count} of {slots} places for prepared transactions taken"
    look = "SELECT gid, prepared, owner, database FROM pg_prepared_xacts;"
    if postgres.prepared_count >= slots:
        advice = "End the prepared transactions that nobody owns, or make more places and restart:"
        return Finding(name, Status.PROBLEM, taken, advice, (look,))
    if postgres.prepared_age_s_max > PREPARED_AGE_S_MAX:
        found = f"{taken}, the oldest for {duration(postgres.prepared_age_s_max)}"
        advice = "It holds its locks and keeps VACUUM from cleaning up. Find out whose it is:"
        return Finding(name, Status.WARNING, found, advice, (look,))
    return Finding(name, Status.OK, taken)


def judge_durability(postgres: Postgres) -> Finding:
    """Nothing is switched off that would let a commit be forgotten."""
    name = "postgresql sync"
    off = [key for key in DURABILITY_SETTINGS if postgres.settings.get(key) == "off"]
    if off:
        advice = (
            "A crash could lose or damage what was committed. Run this as a superuser, and see "
            "that no role, database or connection string sets it again:"
        )
        commands = [f"ALTER SYSTEM SET {key} = on;" for key in off]
        found = f"{' and '.join(off)} {'is' if len(off) == 1 else 'are'} off"
        return Finding(name, Status.PROBLEM, found, advice, (*commands, "SELECT pg_reload_conf();"))
    known = [
        f"{key} {postgres.settings[key]}" for key in DURABILITY_SETTINGS if key in postgres.settings
    ]
    return Finding(name, Status.OK, ", ".join(known))
