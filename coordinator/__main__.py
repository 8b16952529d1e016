"""The coordinator as a process: read its settings and its log, finish what was decided, serve.

    python -m coordinator --data DIR --listen HOST:PORT

`oncemq coordinator` is the same. It ends with 0 when it was told to stop (SIGTERM, SIGINT), and
after that another can take its directory; with 2 when its settings are wrong or unsafe, with 3 when
its directory is in use, damaged or of another kind, and with 4 when its disk has failed it while it
ran: what it had decided is then found on disk at the next start.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Sequence

from coordinator import coordination, interfaces
from coordinator.database_objects import open_databases
from coordinator.decision_log import DecisionLog
from coordinator.live import Settings as Times
from coordinator.measures import CoordinatorMeasures
from coordinator.service import Service
from coordinator.tasks import ThreadTasks
from idl import logs, memory, system
from idl.access import UnsafeSetting
from idl.call import Call
from idl.dispatch import Authorize
from idl.mapping import InvalidValue
from idl.orb import NetworkOrb
from idl.serving import Entrance, Opening, Watch, not_listening
from idl.settings import BadSetting, Program, Settings, add_flags, flags_of, read_settings
from idl.toml_files import BadFile
from idl.turns import give_way
from mqserver.errors import StorageError
from mqserver.storage.disk import Disk, RealDisk
from mqserver.storage.timed_disk import TimedDisk

OK, WRONG_SETTINGS, NO_STORE, DISK_FAILED = 0, 2, 3, 4
DRAIN_S = 10.0
LOCAL = "local"

log = logging.getLogger("oncemq.coordinator")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the coordinator until it is told to stop; its exit code."""
    if not __debug__:
        reason = "the coordinator checks itself by assertions; run it without -O"
        return _regret(reason, WRONG_SETTINGS)
    memory.look_for_rings_seldom()
    # Now one thread, now another writes all of the ledger into one record.
    memory.give_back_what_is_large()
    try:
        said = _parse(arguments)
        settings = read_settings(Program.COORDINATOR, flags_of(said), said.config)
        entrance = Entrance(settings, "coordinator")
        if settings["coordinator.data"] is None:
            raise BadSetting("coordinator.data is not set: say with --data DIR where its log is")
    except (BadFile, UnsafeSetting, InvalidValue, OSError) as wrong:
        return _regret(str(wrong), WRONG_SETTINGS)
    logs.set_up(
        "warning" if said.quiet else settings["log.level"], settings["log.format"] == "json"
    )
    stopping = _Stopping()
    try:
        watch = Watch(
            settings, "coordinator", entrance, _operators(settings, entrance).__contains__
        )
    except (ImportError, UnsafeSetting, OSError) as wrong:
        return _regret(str(wrong), WRONG_SETTINGS)
    with contextlib.closing(watch):
        return _run(said.restored, settings, entrance, stopping, watch)


def _run(
    is_restored: bool, settings: Settings, entrance: Entrance, stopping: _Stopping, watch: Watch
) -> int:
    try:
        disk = _disk(settings, watch)
        decisions = DecisionLog(
            disk, secrets.token_bytes, is_restored=is_restored, give_way=give_way
        )
    except StorageError as refused:
        return _regret(str(refused), NO_STORE)
    tasks = ThreadTasks(time.monotonic, stopping.because)
    opening = Opening("coordinator", _authorize(settings, entrance))
    try:
        orb = _orb(entrance, opening)
    except (UnsafeSetting, OSError) as wrong:
        decisions.close()
        return _regret(not_listening(entrance.listen, wrong), WRONG_SETTINGS)
    service = Service(
        orb, decisions, tasks, secrets.token_bytes, _times(settings), stopping.because
    )
    databases = open_databases(service, disk, secrets.token_bytes)
    service.start()
    interfaces.publish(service)
    coordination.publish(service, databases)
    opening.is_ready = True
    watch.measures = CoordinatorMeasures(service, orb.connections, watch.syncs)
    watch.unready = lambda: "stopping" if stopping.is_asked else ""
    # Read by whoever started us, who may not have said which port.
    print(f"coordinator {decisions.identity.hex()} listens on {orb.address}", flush=True)
    code = _stop(service, orb, tasks, stopping.wait())
    databases.close()
    return code


def _regret(reason: str, code: int) -> int:
    print(f"oncemq: {reason}", file=sys.stderr)
    return code


def _stop(
    service: Service, orb: NetworkOrb, tasks: ThreadTasks, failure: BaseException | None
) -> int:
    if failure is not None:
        # What is on disk is not known; whoever waits was told, and a restart will find out.
        log.critical("stopping: %s", failure, exc_info=failure)
        os._exit(DISK_FAILED)
    log.info("stopping: calls that are running are finished")
    service.timeouts.close()
    orb.close()
    tasks.close(DRAIN_S)
    service.close()
    return OK


class _Stopping:
    """Whether to stop, and why."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._failure: BaseException | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def because(self, failure: BaseException) -> None:
        """Something has gone wrong that cannot be mended while running."""
        self._failure = self._failure or failure
        self._asked.set()

    @property
    def is_asked(self) -> bool:
        """Whether it is time to stop."""
        return self._asked.is_set()

    def wait(self) -> BaseException | None:
        """Returns when it is time to stop, with what went wrong, if anything did."""
        self._asked.wait()
        return self._failure

    def _on_signal(self, number: int, frame: object) -> None:
        if self._asked.is_set():
            # Asked twice: whoever asks cannot wait. What was decided is on disk.
            os._exit(128 + number)
        self._asked.set()


# --- Settings ------------------------------------------------------------------------------------


def _orb(entrance: Entrance, opening: Opening) -> NetworkOrb:
    return NetworkOrb(
        entrance.listen,
        advertise=entrance.advertise,
        tls=entrance.tls,
        authenticator=entrance.authenticator,
        authorize=opening.authorize,
        token=entrance.token,
        limits=entrance.limits,
        trusted=entrance.trusted,
        takes_turns=True,
    )


def _disk(settings: Settings, watch: Watch) -> Disk:
    disk = RealDisk(settings["coordinator.data"], create=True)
    return TimedDisk(disk, time.monotonic, watch.syncs.note) if watch.is_wanted else disk


def _operators(settings: Settings, entrance: Entrance) -> frozenset[str]:
    if entrance.authenticator is None:
        return frozenset({LOCAL})
    return frozenset(settings["coordinator.operators"])


def _authorize(settings: Settings, entrance: Entrance) -> Authorize:
    operators = _operators(settings, entrance)

    def authorize(call: Call, object_name: str, operation: str) -> None:
        if object_name == coordination.ADMIN and call.principal.name not in operators:
            raise system.NO_PERMISSION(f"{operation} is for operators")

    return authorize


def _times(settings: Settings) -> Times:
    return Times(session_s=settings["coordinator.session_timeout_s"])


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="oncemq coordinator",
        description="Runs the coordinator, which decides transactions and has them carried out.",
        epilog="Beyond 127.0.0.1 it needs TLS and tokens or client certificates to start.",
    )
    add_flags(parser, Program.COORDINATOR)
    parser.add_argument(
        "--restored",
        action="store_true",
        help="its directory was put back from a copy: what was begun before and is not decided in "
        "it is left to operators; said once, at the first start",
    )
    parser.add_argument("--quiet", action="store_true", help="log warnings only, and no logins")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
