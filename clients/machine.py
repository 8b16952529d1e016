"""Facts about a machine as values, and how the raw texts that hold them are read.

`probes.py` measures these, `doctor.py` judges them. Everything here is pure: nothing looks at a
file, a socket, a clock or the environment. No fact ever holds a password.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

_SECRET_PARTS = ("password", "sslpassword", "oauth_client_secret")


@dataclass(frozen=True)
class Python:
    """The interpreter that runs this command; `is_optimised` means that assertions are off."""

    version: tuple[int, int, int]
    implementation: str
    is_optimised: bool = False


@dataclass(frozen=True)
class Library:
    """A library OnceMQ needs: the least version that will do, and the one that is there."""

    name: str
    least: str
    installed: str | None


@dataclass(frozen=True)
class Java:
    """Where Java was looked for, what was found there, and what `java -version` printed."""

    java_home: str | None
    executable: str | None
    output: str = ""


@dataclass(frozen=True)
class Spark:
    """Installed versions of what Spark pipelines need, or None."""

    pyspark: str | None
    pyarrow: str | None


@dataclass(frozen=True)
class Directory:
    """The data directory. When it does not exist yet, `nearest` is the closest parent that does."""

    path: str
    nearest: str
    is_directory: bool = True
    is_writable: bool = True
    file_system: str | None = None


@dataclass(frozen=True)
class Sync:
    """How long each small forced write took, or why none could be made."""

    seconds: tuple[float, ...]
    error: str = ""


@dataclass(frozen=True)
class Space:
    """Bytes that this user may still write, and the size of the file system."""

    free_bytes: int
    total_bytes: int


@dataclass(frozen=True)
class OpenFiles:
    """The limits on open files of this process; None stands for unlimited."""

    soft: int | None
    hard: int | None


@dataclass(frozen=True)
class Port:
    """A port on the loopback address; `error` says why it cannot be listened on, if it cannot."""

    number: int
    is_used: bool = False
    error: str = ""


@dataclass(frozen=True)
class Postgres:
    """A PostgreSQL server as seen through one connection; `target` names it without secrets."""

    target: str
    has_driver: bool = True
    is_readable: bool = True
    error: str = ""
    version: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    prepared_count: int = 0
    prepared_age_s_max: float = 0.0
    clock_ahead_s: float = 0.0


@dataclass(frozen=True)
class Clock:
    """The time here, and by how much the clock was moved while the machine was looked at."""

    now_s: float
    jump_s: float = 0.0


@dataclass(frozen=True)
class Machine:
    """Everything measured. `libraries` is None when nothing says what OnceMQ requires."""

    python: Python
    libraries: tuple[Library, ...] | None
    java: Java
    spark: Spark
    directory: Directory
    sync: Sync
    space: Space | None
    open_files: OpenFiles | None
    ports: tuple[Port, ...]
    postgres: Postgres | None
    clock: Clock


def is_at_least(version: str, least: str) -> bool:
    """Whether a version is not older than another, by the numbers of the release alone.

    A pre-release counts as its release: someone who runs one has chosen to.
    """
    return _release(version) >= _release(least)


def library_fault(library: Library) -> str:
    """What is wrong with a library, in words; empty when nothing is."""
    if library.installed is None:
        return f"{library.name} is missing"
    if not is_at_least(library.installed, library.least):
        return f"{library.name} {library.installed} is older than {library.least}"
    return ""


def java_version(output: str) -> str | None:
    """The version in the output of `java -version`, or None where there is none."""
    match = re.search(r'version "([^"]+)"', output)
    return match[1] if match else None


def java_feature(version: str) -> int:
    """The number people call a Java by: 17 of `17.0.15`, 8 of `1.8.0_392`."""
    release = _release(version)
    if not release:
        return 0
    return release[1] if release[0] == 1 and len(release) > 1 else release[0]


def requirement(text: str) -> tuple[str, str] | None:
    """Name and least version of `name>=1.2,<3`; None when it belongs to an extra.

    Only the lower bound is read. The installer has seen to the rest, and what is on a machine
    later is usually too old or missing.
    """
    wanted, _, marker = text.partition(";")
    if "extra" in marker:
        return None
    name = re.match(r"\s*([\w.-]+)", wanted)
    least = re.search(r">=\s*([\w.]+)", wanted)
    return (name[1], least[1] if least else "0") if name else None


def file_system_of(path: str, mounts: str) -> str | None:
    """The type of file system that holds an absolute path, by the text of `/proc/mounts`."""
    kind: str | None = None
    longest = -1
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = _unescaped(fields[1])
        # A later mount hides an earlier one on the same place, hence "or equal".
        if len(point) >= longest and f"{path}/".startswith(f"{point.rstrip('/')}/"):
            longest, kind = len(point), fields[2]
    return kind


def is_sound_target(parts: Mapping[str, object]) -> bool:
    """Whether a connection string was understood as it was meant.

    An unescaped `@` or `/` in a password moves its tail into the host, the port or the database
    name, where it would be printed. Such a string must be refused before anyone quotes it.
    """
    names = f"{parts.get('host', '')}{parts.get('dbname', '')}"
    ports = str(parts.get("port", "")).replace(",", "")
    return "@" not in names and (ports.isdigit() or not ports)


def target_name(parts: Mapping[str, object]) -> str:
    """A database server for people to read, from the parts of its connection string."""
    host = parts.get("host") or parts.get("hostaddr") or "the local server"
    port = f":{parts['port']}" if parts.get("port") else ""
    database = f"{parts['dbname']} on " if parts.get("dbname") else ""
    return f"{database}{host}{port}"


def refusal(message: str, parts: Mapping[str, object]) -> str:
    """What a database driver said, in one line, every secret of the connection string blotted out.

    A driver may add hints on further lines; the first says what happened.
    """
    first = message.strip().partition("\n")[0]
    text = " ".join(first.removeprefix("connection failed: ").split())
    for key in _SECRET_PARTS:
        if secret := str(parts.get(key) or ""):
            text = text.replace(secret, "***")
    return text


def without_passwords(text: str) -> str:
    """Any text with what looks like the password of a connection string blotted out."""
    text = re.sub(r"(://[^\s:/@]*:)\S*@", r"\1***@", text)
    return re.sub(r"(?i)(password\s*=\s*)('[^']*'|[^\s&]+)", r"\1***", text)


def percentile(sample: Sequence[float], share: float) -> float:
    """The least value of the sample that is not below `share` of it (nearest rank)."""
    assert sample
    assert 0 < share <= 1
    ordered = sorted(sample)
    return ordered[math.ceil(share * len(ordered)) - 1]


def _release(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(\.\d+)*", version)
    numbers = [int(part) for part in match[0].split(".")] if match else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _unescaped(text: str) -> str:
    """The kernel writes blanks and backslashes of a path as three octal digits."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
