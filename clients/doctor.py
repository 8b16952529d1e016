"""Judges what was measured on a machine: facts go in, findings with advice come out.

All of it is pure: no function here looks at a file, a socket, a clock or the environment
(`probes.py` does). So every sentence a user may read is tested with literal facts.

Kept true throughout:
1. Java, Spark and PostgreSQL are optional: their absence is neither a warning nor a problem.
2. Only a problem makes the command fail; a warning leaves the choice to the reader.
3. Every warning and every problem says what to do.
"""

from collections.abc import Sequence
from datetime import UTC, datetime

from clients.extras import judge_java, judge_postgres, judge_spark
from clients.findings import Finding, Status, duration, moment, size
from clients.machine import (
    Clock,
    Directory,
    Library,
    Machine,
    OpenFiles,
    Port,
    Postgres,
    Python,
    Space,
    Sync,
    is_at_least,
    library_fault,
    percentile,
)

DEFAULT_PORTS = {7410: "coordinator", 7411: "node"}
LEAST_PYTHON = "3.11"
OPEN_FILES_MIN = 1024
FREE_BYTES_WARNING = 2**30
FREE_BYTES_PROBLEM = 100 * 2**20
# No disk that keeps its word answers faster than this; a cache that forgets does.
SYNC_MEDIAN_S_MIN = 20e-6
SYNC_MEDIAN_S_MAX = 25e-3
SYNC_P99_S_MAX = 0.5
CLOCK_EARLIEST = datetime(2026, 1, 1, tzinfo=UTC)
CLOCK_LATEST = datetime(2100, 1, 1, tzinfo=UTC)
CLOCK_DIFFERENCE_S_MAX = 5.0
CLOCK_JUMP_S_MAX = 1.0

_IN_MEMORY = frozenset({"tmpfs", "ramfs"})
_CONTAINER_LAYER = frozenset({"overlay", "aufs"})
_NETWORK = frozenset(
    {
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "davfs",
        "fuse.glusterfs",
        "fuse.rclone",
        "fuse.s3fs",
        "fuse.sshfs",
        "fuse.vmhgfs-fuse",
        "glusterfs",
        "lustre",
        "nfs",
        "nfs4",
        "smb3",
        "smbfs",
        "vboxsf",
        "virtiofs",
    }
)


def judge(machine: Machine) -> list[Finding]:
    """The findings on a machine, in the order in which they are shown."""
    return [
        judge_python(machine.python),
        judge_libraries(machine.libraries),
        judge_directory(machine.directory),
        judge_sync(machine.sync),
        judge_space(machine.space),
        judge_open_files(machine.open_files),
        judge_ports(machine.ports),
        judge_clock(machine.clock, machine.postgres),
        judge_java(machine.java, machine.spark),
        judge_spark(machine.spark),
        *judge_postgres(machine.postgres),
    ]


def measured(machine: Machine) -> dict[str, float | None]:
    """The numbers worth watching over time; None where one could not be had."""
    sample, space, limit = machine.sync.seconds, machine.space, machine.open_files
    return {
        "sync_median_s": percentile(sample, 0.5) if sample else None,
        "sync_p99_s": percentile(sample, 0.99) if sample else None,
        "free_bytes": space.free_bytes if space else None,
        "total_bytes": space.total_bytes if space else None,
        "open_files_limit": limit.soft if limit else None,
    }


def judge_python(python: Python) -> Finding:
    """Python is new enough and runs assertions, without which the servers refuse to start."""
    version = ".".join(map(str, python.version))
    found = f"{python.implementation} {version}"
    if not is_at_least(version, LEAST_PYTHON):
        advice = f"Run OnceMQ with Python {LEAST_PYTHON} or newer."
        return Finding("python", Status.PROBLEM, f"{found} is too old", advice)
    if python.is_optimised:
        advice = "Start Python without -O; the servers refuse to run without assertions."
        found = f"{found}, with assertions switched off"
        return Finding("python", Status.PROBLEM, found, advice, ("unset PYTHONOPTIMIZE",))
    return Finding("python", Status.OK, found)


def judge_libraries(libraries: Sequence[Library] | None) -> Finding:
    """Every library OnceMQ requires is there and new enough."""
    reinstall = ("python -m pip install --upgrade oncemq",)
    if libraries is None:
        found = "OnceMQ is not installed here, so what it requires is not known"
        return Finding("libraries", Status.WARNING, found, "Install it.", reinstall)
    faults = [fault for library in libraries if (fault := library_fault(library))]
    if faults:
        advice = "Bring the libraries up to date."
        return Finding("libraries", Status.PROBLEM, "; ".join(faults), advice, reinstall)
    present = ", ".join(f"{library.name} {library.installed}" for library in libraries)
    return Finding("libraries", Status.OK, present)


def judge_directory(directory: Directory) -> Finding:
    """The data directory can be written to and lies where data survives."""
    name = "data directory"
    place = directory.path
    if directory.nearest != directory.path:
        place = f"{directory.path} (does not exist yet)"
    if not directory.is_directory:
        found = f"{directory.nearest} is not a directory"
        return Finding(name, Status.PROBLEM, found, "Choose a directory with --data.")
    if not directory.is_writable:
        found = f"{directory.nearest} cannot be written to by this user"
        advice = "Choose another directory with --data, or change who may write there."
        return Finding(name, Status.PROBLEM, found, advice)
    trouble, advice = _file_system_trouble(directory.file_system)
    if trouble:
        found = f"{place}, on {directory.file_system}: {trouble}"
        return Finding(name, Status.WARNING, found, advice)
    kind = f", on {directory.file_system}" if directory.file_system else ""
    return Finding(name, Status.OK, f"{place}{kind}")


def _file_system_trouble(kind: str | None) -> tuple[str, str]:
    """What is wrong with keeping a log on such a file system, and what to do instead."""
    if kind in _IN_MEMORY:
        return "kept in memory only", "Use it for tests; messages there do not survive a restart."
    if kind in _CONTAINER_LAYER:
        return "a container's own layer", "Mount a volume: this layer goes when the container does."
    if kind in _NETWORK:
        return (
            "a shared or network file system",
            "Prefer a local disk; here locks and forced writes are only as good as the other side.",
        )
    return "", ""


def judge_sync(sync: Sync) -> Finding:
    """A small forced write takes as long as a disk that keeps its word takes, and not much longer.

    Every commit waits for one, so this is the number that says how fast a node can be.
    """
    name = "disk sync"
    if not sync.seconds:
        found = f"could not be measured: {sync.error}"
        advice = "Choose with --data a directory that can be written to."
        return Finding(name, Status.PROBLEM, found, advice)
    median, p99 = percentile(sync.seconds, 0.5), percentile(sync.seconds, 0.99)
    found = f"median {duration(median)}, p99 {duration(p99)} per forced 4 KiB write"
    if median < SYNC_MEDIAN_S_MIN:
        advice = (
            "This disk or file system may not really sync: a power cut could lose what was "
            "committed. Put the data on a local disk that does."
        )
        return Finding(name, Status.WARNING, f"{found}, suspiciously fast", advice)
    if median > SYNC_MEDIAN_S_MAX:
        advice = "Each commit waits for one sync. Prefer a solid-state disk for the data directory."
        return Finding(name, Status.WARNING, f"{found}, which is slow", advice)
    if p99 > SYNC_P99_S_MAX:
        advice = "See what else keeps this disk busy: now and then a commit will wait as long."
        return Finding(name, Status.WARNING, f"{found}, so it stalls", advice)
    return Finding(name, Status.OK, found)


def judge_space(space: Space | None) -> Finding:
    """There is room for the log and the data file to grow."""
    if space is None:
        advice = "Choose with --data a directory that can be read."
        return Finding("free space", Status.WARNING, "could not be read", advice)
    found = f"{size(space.free_bytes)} of {size(space.total_bytes)} free"
    if space.free_bytes >= FREE_BYTES_WARNING:
        return Finding("free space", Status.OK, found)
    advice = "Make room, or choose a larger disk with --data; a full disk stops every commit."
    is_short = space.free_bytes < FREE_BYTES_PROBLEM
    return Finding("free space", Status.PROBLEM if is_short else Status.WARNING, found, advice)


def judge_open_files(limit: OpenFiles | None) -> Finding:
    """A node may hold enough connections and files open at once."""
    name = "open files"
    if limit is None:
        return Finding(name, Status.NOT_NEEDED, "this system has no such limit to read")
    if limit.soft is None:
        return Finding(name, Status.OK, "unlimited")
    found = f"limit {limit.soft:,}"
    if limit.soft >= OPEN_FILES_MIN:
        return Finding(name, Status.OK, found)
    found = f"{found}, fewer than {OPEN_FILES_MIN:,}: many clients would be turned away"
    if limit.hard is not None and limit.hard < OPEN_FILES_MIN:
        advice = f"Ask the administrator to raise the hard limit, which is {limit.hard:,}."
        return Finding(name, Status.WARNING, found, advice)
    raised = 4096 if limit.hard is None else min(4096, limit.hard)
    advice = "Raise it in the shell that starts OnceMQ."
    return Finding(name, Status.WARNING, found, advice, (f"ulimit -n {raised}",))


def judge_ports(ports: Sequence[Port]) -> Finding:
    """The ports OnceMQ would listen on are free; a used one may well be OnceMQ itself."""
    found = ", ".join(_port_state(port) for port in ports)
    forbidden = [port for port in ports if port.error]
    used = [port for port in ports if port.is_used]
    if forbidden:
        advice = "Choose another port with --listen; those below 1024 belong to the system."
        return Finding("ports", Status.PROBLEM, found, advice)
    if used:
        advice = (
            "By whom is not known. If OnceMQ runs already, all is well; otherwise choose another "
            "port with --listen. To see who listens:"
        )
        commands = tuple(f"ss -ltnp 'sport = :{port.number}'" for port in used)
        return Finding("ports", Status.WARNING, found, advice, commands)
    return Finding("ports", Status.OK, found)


def _port_state(port: Port) -> str:
    role = f" ({DEFAULT_PORTS[port.number]})" if port.number in DEFAULT_PORTS else ""
    state = f"refused ({port.error})" if port.error else "in use" if port.is_used else "free"
    return f"{port.number}{role} {state}"


def judge_clock(clock: Clock, postgres: Postgres | None) -> Finding:
    """The clock is plausible, steady, and agrees with the database's, if there is one."""
    set_clock = ("timedatectl set-ntp true",)
    if not CLOCK_EARLIEST.timestamp() <= clock.now_s <= CLOCK_LATEST.timestamp():
        advice = "Set the clock, and keep it set by a time service."
        found = f"{moment(clock.now_s)} cannot be right"
        return Finding("clock", Status.PROBLEM, found, advice, set_clock)
    found = moment(clock.now_s)
    if abs(clock.jump_s) > CLOCK_JUMP_S_MAX:
        found = f"{found}; it jumped by {clock.jump_s:+.1f} s during this check"
        advice = "Let a time service slew the clock: message times follow it."
        return Finding("clock", Status.WARNING, found, advice, set_clock)
    ahead = postgres.clock_ahead_s if postgres else 0.0
    if abs(ahead) > CLOCK_DIFFERENCE_S_MAX:
        found = f"{found}; the PostgreSQL server's differs by {ahead:+.1f} s"
        advice = "Have both machines follow a time service."
        return Finding("clock", Status.WARNING, found, advice, set_clock)
    return Finding("clock", Status.OK, found)
