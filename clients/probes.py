"""Measures the facts about this machine that `doctor.py` judges. Decides nothing.

The one part of the doctor that touches the outside world: the interpreter, installed
distributions, programs, files, sockets, clocks and a database. It reads, times and lets go again:
the only thing ever written is one small file in the data directory, which is removed. No probe
raises for what it finds; what went wrong is a fact like any other. Environment variables are
handed in.
"""

import contextlib
import errno
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

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
    file_system_of,
    is_sound_target,
    refusal,
    requirement,
    target_name,
)

Rows = Sequence[tuple[Any, ...]]
Fetch = Callable[[str], Rows]

SYNC_COUNT = 50
BLOCK_BYTES = 4096
SYNC_BUDGET_S = 5.0
JAVA_TIMEOUT_S = 20.0
CONNECT_TIMEOUT_S = 5

SETTINGS_QUERY = (
    "select name, setting from pg_settings where name in ('server_version', "
    "'max_prepared_transactions', 'fsync', 'synchronous_commit', 'full_page_writes')"
)
PREPARED_QUERY = (
    "select count(*), coalesce(max(extract(epoch from clock_timestamp() - prepared)), 0) "
    "from pg_prepared_xacts"
)
CLOCK_QUERY = "select extract(epoch from clock_timestamp())"


def examine(
    data: Path, ports: Sequence[int], dsn: str | None, environment: Mapping[str, str]
) -> Machine:
    """Measures everything once, which takes about as long as fifty forced writes."""
    wall_s, steady_s = time.time(), time.monotonic()
    directory = probe_directory(data)
    return Machine(
        python=probe_python(),
        libraries=probe_libraries(),
        java=probe_java(environment),
        spark=Spark(installed_version("pyspark"), installed_version("pyarrow")),
        directory=directory,
        sync=probe_sync(Path(directory.nearest)),
        space=probe_space(Path(directory.nearest)),
        open_files=probe_open_files(),
        ports=tuple(probe_port(number) for number in ports),
        postgres=None if dsn is None else probe_postgres(dsn),
        # Last, so that a clock set while the rest was measured is noticed.
        clock=Clock(time.time(), (time.time() - wall_s) - (time.monotonic() - steady_s)),
    )


def probe_python() -> Python:
    """The interpreter that runs this."""
    major, minor, micro = sys.version_info[:3]
    return Python((major, minor, micro), platform.python_implementation(), bool(sys.flags.optimize))


def installed_version(name: str) -> str | None:
    """The version of an installed distribution, found without importing it."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def probe_libraries() -> tuple[Library, ...] | None:
    """What OnceMQ requires and what of it is installed; None when nothing says what is required."""
    texts = _requirements()
    if texts is None:
        return None
    wanted = [parsed for text in texts if (parsed := requirement(text))]
    return tuple(Library(name, least, installed_version(name)) for name, least in wanted)


def _requirements() -> Sequence[str] | None:
    """Requirements of the installed distribution or, in a source tree, of the project file."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.requires("oncemq") or ()
    project_file = Path(__file__).resolve().parent.parent / "pyproject.toml"
    with contextlib.suppress(OSError, tomllib.TOMLDecodeError, KeyError):
        project = tomllib.loads(project_file.read_text(encoding="utf-8"))["project"]
        return tuple(project["dependencies"]) if project["name"] == "oncemq" else None
    return None


def probe_java(environment: Mapping[str, str]) -> Java:
    """The Java that Spark would start: that of JAVA_HOME if it is set, else the one on the PATH."""
    home = environment.get("JAVA_HOME") or None
    name = str(Path(home) / "bin" / "java") if home else "java"
    executable = shutil.which(name, path=environment.get("PATH"))
    if executable is None:
        return Java(home, None)
    try:
        answer = subprocess.run(
            [executable, "-version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=JAVA_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return Java(home, executable)
    return Java(home, executable, answer.stdout.decode(errors="replace"))


def probe_directory(data: Path) -> Directory:
    """The data directory, or where it would be made. It is not made."""
    path = os.path.abspath(data)
    nearest = path
    while not os.path.lexists(nearest) and nearest != os.path.dirname(nearest):
        nearest = os.path.dirname(nearest)
    mounts = ""
    with contextlib.suppress(OSError):
        mounts = Path("/proc/mounts").read_text(encoding="utf-8", errors="replace")
    return Directory(
        path=path,
        nearest=nearest,
        is_directory=os.path.isdir(nearest),
        is_writable=os.access(nearest, os.W_OK | os.X_OK),
        file_system=file_system_of(os.path.realpath(nearest), mounts),
    )


def probe_sync(directory: Path) -> Sync:
    """Times small forced overwrites of a file made for it, as the log will do them."""
    try:
        # A file with a name, although one without would remove itself: some file systems do not
        # bother to sync what has no name, and would look faster than they are.
        with tempfile.NamedTemporaryFile(prefix=".oncemq-doctor-", dir=directory) as file:
            return Sync(tuple(_forced_writes(file.fileno())))
    except OSError as error:
        return Sync((), error.strerror or "unknown error")


def _forced_writes(descriptor: int) -> Iterator[float]:
    # Not every system has fdatasync; all have fsync.
    force = getattr(os, "fdatasync", os.fsync)
    # Random, so that no file system compresses it away.
    block = os.urandom(BLOCK_BYTES)
    # Written once beforehand: an overwrite is timed, not the growth of a file.
    os.pwrite(descriptor, block * SYNC_COUNT, 0)
    os.fsync(descriptor)
    deadline_s = time.monotonic() + SYNC_BUDGET_S
    for number in range(SYNC_COUNT):
        begin_s = time.perf_counter()
        os.pwrite(descriptor, block, number * BLOCK_BYTES)
        force(descriptor)
        yield time.perf_counter() - begin_s
        if time.monotonic() > deadline_s:
            return


def probe_space(directory: Path) -> Space | None:
    """The room on the file system, as far as this user may use it."""
    try:
        usage = shutil.disk_usage(directory)
    except OSError:
        return None
    return Space(usage.free, usage.total)


def probe_open_files() -> OpenFiles | None:
    """The limits on open files; None on a system that has none."""
    try:
        import resource
    except ImportError:
        return None
    soft, hard = (
        None if limit == resource.RLIM_INFINITY else limit
        for limit in resource.getrlimit(resource.RLIMIT_NOFILE)
    )
    return OpenFiles(soft, hard)


def probe_port(number: int) -> Port:
    """Whether a server could listen on the port at the loopback address."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as door:
        # As a server would: a connection that has just ended does not count.
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            door.bind(("127.0.0.1", number))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return Port(number, is_used=True)
            return Port(number, error=error.strerror or "cannot be used")
    return Port(number)


def probe_postgres(dsn: str) -> Postgres:
    """Connects once, reads what matters for two-phase commit, and disconnects."""
    try:
        import psycopg
        from psycopg.conninfo import conninfo_to_dict, make_conninfo
    except ImportError:
        return Postgres("", has_driver=False)
    try:
        parts = conninfo_to_dict(dsn)
    except psycopg.Error:
        # The driver's message quotes the string, password and all.
        return Postgres("", is_readable=False)
    if not is_sound_target(parts):
        return Postgres("", is_readable=False)
    target = target_name(parts)
    parts.setdefault("connect_timeout", CONNECT_TIMEOUT_S)
    try:
        with psycopg.connect(make_conninfo("", **parts), autocommit=True) as connection:
            return read_postgres(target, lambda query: connection.execute(query).fetchall())
    except psycopg.Error as error:
        return Postgres(target, error=refusal(str(error), parts))


def read_postgres(target: str, fetch: Fetch, now: Callable[[], float] = time.time) -> Postgres:
    """The facts about a server, by asking through `fetch`."""
    settings = {str(name): str(setting) for name, setting in fetch(SETTINGS_QUERY)}
    ((count, age_s),) = fetch(PREPARED_QUERY)
    before_s = now()
    ((server_s,),) = fetch(CLOCK_QUERY)
    return Postgres(
        target,
        version=settings.pop("server_version", "unknown").partition(" ")[0],
        settings=settings,
        prepared_count=int(count),
        prepared_age_s_max=float(age_s),
        # The answer was made about halfway between the question and its arrival.
        clock_ahead_s=float(server_s) - (before_s + now()) / 2,
    )
