"""The servers of the peers: started here, on loopback and free ports, and stopped by their pids.

Each keeps its data in a folder of its own and is set to have a message on disk before it says so;
where a system cannot be set so, `systems.py` says what it does instead. A server that is not on
this machine is `Absent`, with the reason. Nothing here knows what is measured.
"""

from __future__ import annotations

import base64
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

HOST = "127.0.0.1"
START_S = 60.0
STOP_S = 20.0
PAUSE_S = 0.1

_ROOT = Path(__file__).resolve().parents[2]
_SETUP = _ROOT / "tests" / "setup"
# Runs a server as long as its own input lasts, so that none outlives a run that was killed.
_KEEPER = (
    "bash",
    "-c",
    '"$@" </dev/null & server=$!; trap "" INT; cat >/dev/null; kill "$server"; wait "$server"',
    "keeper",
)
_RABBITMQ = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
_ACTIVEMQ = Path("/usr/share/activemq")


class Absent(Exception):
    """The server cannot be had here; the text says why."""


class Servers:
    """All servers of a run. Closing it ends those that were started, and no others."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started = ExitStack()

    def close(self) -> None:
        """Everything that was started has ended."""
        self._started.close()

    def start(self, kind: str) -> str:
        """The address of a new server: a DSN, or host and port. Raises `Absent`."""
        folder = self._folder / f"{kind}-{len(list(self._folder.glob(f'{kind}-*')))}"
        folder.mkdir(parents=True)
        return _STARTERS[kind](self, folder)

    # --- Processes

    def _process(
        self,
        command: Sequence[str | Path],
        folder: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        program = str(command[0])
        if shutil.which(program) is None:
            raise Absent(f"{program} is not installed")
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [*_KEEPER, *map(str, command)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )
        self._started.callback(_end, process)

    def _listening(self, command: Sequence[str | Path], folder: Path, port: int) -> str:
        """The address of a server that was told its port, once it answers there."""
        self._process(command, folder)
        return _await(port, folder)

    # --- Each kind

    def _oncemq(self, folder: Path) -> str:
        """A coordinator and a node; or a node more, for the coordinator that is there."""
        coordinator = self._folder / "coordinator"
        if not coordinator.exists():
            coordinator.write_text(self._ours("coordinator", folder / "coordinator"))
        where = coordinator.read_text()
        return f"mq://{self._ours('mqserver', folder / 'node', '--coordinator', where)}"

    def _ours(self, module: str, data: Path, *more: str) -> str:
        command = [sys.executable, "-m", module, "--data", str(data), "--listen", f"{HOST}:0"]
        process = subprocess.Popen(
            [*_KEEPER, *command, "--log-level", "error", *more],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=_ROOT,
            start_new_session=True,
        )
        self._started.callback(_end, process)
        return _first_line(process).rpartition(" ")[2]

    def _postgres(self, folder: Path) -> str:
        return self._by_script(_SETUP / "postgres.sh", folder)

    def _mariadb(self, folder: Path) -> str:
        return self._by_script(_SETUP / "mariadb.sh", folder)

    def _by_script(self, script: Path, folder: Path) -> str:
        # The server's own user must be able to look into it.
        for each in (folder, folder.parent):
            each.chmod(0o755)
        with (folder.parent / f"{folder.name}.log").open("wb") as log:
            keeper = subprocess.Popen(
                [script, "serve", folder / "data"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        # It stops and removes everything when its input ends.
        self._started.callback(_end, keeper)
        return _first_line(keeper)

    def _redis(self, folder: Path) -> str:
        port = _free_port()
        command = ["redis-server", "--bind", HOST, "--port", str(port), "--dir", str(folder)]
        command += ["--save", "", "--appendonly", "yes", "--appendfsync", "always"]
        return self._listening(command, folder, port)

    def _beanstalkd(self, folder: Path) -> str:
        port = _free_port()
        command = ["beanstalkd", "-l", HOST, "-p", str(port), "-b", str(folder), "-f", "0"]
        return self._listening([*command, "-z", "2000000", "-s", "67108864"], folder, port)

    def _nats(self, folder: Path) -> str:
        port = _free_port()
        settings = folder / "nats.conf"
        settings.write_text(
            f'listen: "{HOST}:{port}"\nmax_payload: 4194304\n'
            f'jetstream {{ store_dir: "{folder}/store"\n sync_interval: always }}\n'
        )
        program = Path(sys.executable).parent / "nats-server"
        return self._listening([program, "-c", settings], folder, port)

    def _rabbitmq(self, folder: Path) -> str:
        port, names, distribution = _free_port(), _free_port(), _free_port()
        settings = folder / "rabbitmq.conf"
        settings.write_text(
            f"listeners.tcp.1 = {HOST}:{port}\nlog.file.level = warning\n"
            "vm_memory_high_watermark.relative = 0.4\ndisk_free_limit.absolute = 200MB\n"
        )
        environment = {
            "HOME": str(folder),
            "ERL_EPMD_ADDRESS": HOST,
            "ERL_EPMD_PORT": str(names),
            "RABBITMQ_NODENAME": f"oncemq{port}@localhost",
            "RABBITMQ_BASE": str(folder),
            "RABBITMQ_HOME_DIR": str(folder),
            "RABBITMQ_CONFIG_FILE": str(settings),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "logs"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        }
        # Its own name server, so that none of this machine's is used or left behind.
        (folder / "epmd").mkdir()
        self._process(["epmd"], folder / "epmd", environment)
        self._process([_RABBITMQ], folder, environment)
        return _await(port, folder)

    def _kafka(self, folder: Path) -> str:
        jars = Path(sys.executable).parent.parent / "kafka" / "server"
        if not jars.exists():
            raise Absent(
                "Kafka is not there; it needs Java and Maven, see benchmarks/peers/setup.sh"
            )
        port, controller = _free_port(), _free_port()
        settings = folder / "server.properties"
        settings.write_text(
            _KAFKA_SETTINGS.format(folder=folder, host=HOST, port=port, controller=controller)
        )
        java = ["java", "-Xms256M", "-Xmx1G", "-cp", f"{jars}/*"]
        identity = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        prepare = ["kafka.tools.StorageTool", "format", "-t", identity, "-c", str(settings)]
        with (folder / "format.log").open("wb") as log:
            command = [*java, *prepare]
            done = subprocess.run(command, stdout=log, stderr=log, timeout=START_S, check=False)
        if done.returncode:
            raise Absent("Kafka could not prepare its folder")
        return self._listening([*java, "kafka.Kafka", settings], folder, port)

    def _activemq(self, folder: Path) -> str:
        archive = _ACTIVEMQ / "bin" / "activemq.jar"
        if not archive.exists():
            raise Absent("activemq is not installed")
        port = _free_port()
        (folder / "conf").mkdir()
        settings = folder / "conf" / "activemq.xml"
        settings.write_text(_ACTIVEMQ_SETTINGS.format(folder=folder, host=HOST, port=port))
        folders = {
            "home": _ACTIVEMQ,
            "base": folder,
            "conf": folder / "conf",
            "data": folder / "data",
        }
        command = ["java", "-Xms256M", "-Xmx1G"]
        command += [f"-Dactivemq.{name}={place}" for name, place in folders.items()]
        command += ["-jar", str(archive), "start", f"xbean:file:{settings}"]
        return self._listening(command, folder, port)


_STARTERS: dict[str, Callable[[Servers, Path], str]] = {
    "oncemq": Servers._oncemq,
    "postgres": Servers._postgres,
    "mariadb": Servers._mariadb,
    "redis": Servers._redis,
    "beanstalkd": Servers._beanstalkd,
    "nats": Servers._nats,
    "rabbitmq": Servers._rabbitmq,
    "activemq": Servers._activemq,
    "kafka": Servers._kafka,
    # In the client's process: the address is the folder.
    "sqlite": lambda _, folder: str(folder),
    "bare": lambda _, folder: str(folder),
}

# Without the wider pages, a thousand messages that were not acknowledged yet stall the consumer.
_ACTIVEMQ_SETTINGS = """\
<beans xmlns="http://www.springframework.org/schema/beans"
  xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"
  xsi:schemaLocation="http://www.springframework.org/schema/beans
  http://www.springframework.org/schema/beans/spring-beans.xsd
  http://activemq.apache.org/schema/core
  http://activemq.apache.org/schema/core/activemq-core.xsd">
  <broker xmlns="http://activemq.apache.org/schema/core" brokerName="peer" useJmx="false"
          persistent="true" dataDirectory="{folder}/data">
    <destinationPolicy><policyMap><policyEntries>
      <policyEntry queue="&gt;" maxPageSize="5000"/>
    </policyEntries></policyMap></destinationPolicy>
    <persistenceAdapter>
      <kahaDB directory="{folder}/data/kahadb" journalDiskSyncStrategy="always"/>
    </persistenceAdapter>
    <transportConnectors>
      <transportConnector name="stomp"
        uri="stomp://{host}:{port}?transport.tcpNoDelay=true&amp;wireFormat.maxFrameSize=104857600"/>
    </transportConnectors>
  </broker>
</beans>
"""


# One broker that is its own controller. It syncs its log at every write, also that of offsets and
# of transactions, for which one partition is enough.
_KAFKA_SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller}
advertised.listeners=PLAINTEXT://{host}:{port}
controller.listener.names=CONTROLLER
log.dirs={folder}/data
log.flush.interval.messages=1
message.max.bytes=4194304
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
"""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _first_line(server: subprocess.Popen[bytes]) -> str:
    """What it says once it is there: where."""
    assert server.stdout is not None
    is_there, _, _ = select.select([server.stdout], [], [], START_S)
    line = server.stdout.readline().decode().strip() if is_there else ""
    if not line:
        raise Absent("it did not start")
    return line


def _await(port: int, folder: Path) -> str:
    give_up = time.monotonic() + START_S
    while time.monotonic() < give_up:
        try:
            socket.create_connection((HOST, port), 1.0).close()
        except OSError:
            time.sleep(PAUSE_S)
        else:
            return f"{HOST}:{port}"
    lines = (folder / "log").read_text(errors="replace").strip().splitlines()
    raise Absent(f"it did not start: {lines[-1] if lines else 'without a word'}")


def _end(keeper: subprocess.Popen[bytes]) -> None:
    assert keeper.stdin is not None
    keeper.stdin.close()
    try:
        keeper.wait(STOP_S)
    except subprocess.TimeoutExpired:
        os.killpg(keeper.pid, signal.SIGKILL)
        keeper.wait(STOP_S)
