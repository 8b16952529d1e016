"""A node as a process: read its settings, open its storage, recover, publish, serve.

    python -m mqserver --data DIR --listen HOST:PORT --coordinator HOST:PORT

`oncemq server` is the same. It ends with 0 when it was told to stop (SIGTERM, SIGINT, shutdown by
an operator): running transactions are then rolled back, prepared ones kept. A second signal ends it
at once. SIGHUP makes it read the permissions and the level of its log again. Otherwise it ends with

    2   settings that are wrong, or would be unsafe; nothing was touched
    3   its directory is damaged, and was left as it is
    4   its directory is in use by another process
    5   its directory belongs to something else, or to another version
    70  a fault in OnceMQ itself, which its log describes
    71  the operating system refused, at the start or while it ran; a restart finds all on disk
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import resource
import secrets
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from idl import logs, memory
from idl.access import UnsafeSetting
from idl.mapping import InvalidValue
from idl.orb import NetworkOrb
from idl.serving import Entrance, Opening, Watch, not_listening
from idl.settings import BadSetting, Program, Settings, add_flags, flags_of, read_settings
from idl.toml_files import BadFile
from idl.turns import give_way, step_aside
from mqserver.errors import Corruption, MqError, StorageError, StorageLocked, WrongFormat
from mqserver.failures import reporting
from mqserver.measures import NodeMeasures
from mqserver.node import Node, NodeSettings
from mqserver.permissions import Permissions
from mqserver.storage.contract import Storage
from mqserver.storage.disk import Disk, RealDisk
from mqserver.storage.memory import MemoryStorage
from mqserver.storage.paged import PagedStorage, Turns
from mqserver.storage.timed_disk import TimedDisk
from mqserver.transactions.orphans import AskingTimes

OK, WRONG_SETTINGS, DAMAGED, IN_USE, NOT_A_STORE, FAULT, SYSTEM = 0, 2, 3, 4, 5, 70, 71
IDENTITY_BYTES = 16
CALL_ROOM_BYTES = 65_536
# The narrowest that fits says it.
EXIT_CODES: dict[type[Exception], int] = {
    StorageLocked: IN_USE,
    WrongFormat: NOT_A_STORE,
    Corruption: DAMAGED,
    StorageError: SYSTEM,
    MqError: SYSTEM,
    OSError: SYSTEM,
}

log = logging.getLogger("oncemq.node")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a node until it is told to stop; its exit code."""
    if not __debug__:
        return _regret("a node checks itself by assertions; run it without -O", WRONG_SETTINGS)
    try:
        said = _parse(arguments)
        settings = _read(said)
        entrance = Entrance(settings, "server")
        permissions = _permissions(settings, entrance)
    except (BadFile, UnsafeSetting, InvalidValue, OSError) as wrong:
        return _regret(str(wrong), WRONG_SETTINGS)
    _protect_secrets()
    memory.look_for_rings_seldom()
    memory.keep_what_is_free()
    logs.set_up("warning" if said.quiet else settings["log.level"], _is_json(settings))
    stopping = _Stopping()
    sys.excepthook = _admit
    threading.excepthook = stopping.on_fault
    try:
        watch = Watch(settings, "server", entrance, permissions.is_operator)
    except (ImportError, UnsafeSetting) as wrong:
        return _regret(str(wrong), WRONG_SETTINGS)
    except OSError as wrong:
        return _regret(str(wrong), SYSTEM)
    with contextlib.closing(watch):
        return _run(_Given(said, settings, entrance, permissions, stopping, watch))


class _Given(NamedTuple):
    """What a node is run with."""

    said: argparse.Namespace
    settings: Settings
    entrance: Entrance
    permissions: Permissions
    stopping: _Stopping
    watch: Watch


def _run(given: _Given) -> int:
    try:
        opened = _open_storage(given.settings, given.watch)
    except ImportError as missing:
        return _regret(str(missing), WRONG_SETTINGS)
    except MqError as refused:
        return _regret(str(refused), _exit_code(refused))
    storage = reporting(opened, given.stopping.because)
    opening = Opening("node", given.permissions.authorize)
    try:
        orb = _open_orb(given.settings, given.entrance, opening)
    except (UnsafeSetting, OSError) as wrong:
        storage.close()
        code = SYSTEM if isinstance(wrong, OSError) else WRONG_SETTINGS
        return _regret(not_listening(given.entrance.listen, wrong), code)
    node = _composed(given, orb, storage)
    try:
        node.start()
    except MqError as refused:
        return _regret(str(refused), _exit_code(refused))
    opening.is_ready = True
    _let_watch(given, node, orb, opened)
    return _serve(given, node, orb)


def _composed(given: _Given, orb: NetworkOrb, storage: Storage) -> Node:
    return Node(
        orb,
        storage,
        name=given.settings["server.name"],
        coordinator=str(given.settings["server.coordinator"]),
        permissions=given.permissions,
        settings=_node_settings(given.settings),
        clock=time.monotonic,
        wall_clock=time.time,
        on_shutdown=given.stopping.ask,
    )


def _let_watch(given: _Given, node: Node, orb: NetworkOrb, opened: Storage) -> None:
    """From now on watchers see the node."""

    def unready() -> str:
        if given.stopping.is_asked:
            return "stopping"
        return "" if node.queues.is_enabled else "switched off by an operator"

    log_bytes = (lambda: opened.log_bytes) if isinstance(opened, PagedStorage) else None
    syncs = given.watch.syncs
    given.watch.measures = NodeMeasures(node, orb.connections, time.time, syncs, log_bytes)
    given.watch.unready = unready


def _serve(given: _Given, node: Node, orb: NetworkOrb) -> int:
    signal.signal(signal.SIGHUP, lambda number, frame: _reload(given.said, given.permissions))
    # Read by whoever started us, who may not have said which port.
    print(f"node {node.name} listens on {orb.address}", flush=True)
    failure = given.stopping.wait()
    if failure is not None:
        # What is on disk is not known; whoever waits was told, and a restart will find out.
        is_told = isinstance(failure, MqError)
        log.critical("stopping: %s", failure, exc_info=None if is_told else failure)
        os._exit(_exit_code(failure))
    log.info("stopping: calls that are running are finished, running transactions rolled back")
    node.drain()
    orb.close()
    # Before the storage is closed, which nobody may ask after that.
    given.watch.close()
    node.close()
    return OK


class _Stopping:
    """Whether to stop, and why."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._failure: Exception | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        # Until there is something to be read again, it must not end the process.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def ask(self) -> None:
        """It is time to stop, in good order."""
        self._asked.set()

    def because(self, failure: Exception) -> None:
        """Something has gone wrong that cannot be mended while running."""
        self._failure = self._failure or failure
        self._asked.set()

    def on_fault(self, fault: threading.ExceptHookArgs) -> None:
        """A thread has ended that was not to: what it did is done by nobody now."""
        if isinstance(fault.exc_value, Exception):
            self.because(fault.exc_value)

    @property
    def is_asked(self) -> bool:
        """Whether it is time to stop."""
        return self._asked.is_set()

    def wait(self) -> Exception | None:
        """Returns when it is time to stop, with what went wrong, if anything did."""
        self._asked.wait()
        return self._failure

    def _on_signal(self, number: int, frame: object) -> None:
        if self._asked.is_set():
            # Asked twice: whoever asks cannot wait. What was acknowledged is on disk.
            os._exit(128 + number)
        self._asked.set()


def _admit(kind: type[BaseException], fault: BaseException, trace: TracebackType | None) -> None:
    """A fault of ours that nobody has caught: it is described, and nothing more is done."""
    log.critical("a fault in OnceMQ: %s", fault, exc_info=(kind, fault, trace))
    os._exit(FAULT)


def _reload(said: argparse.Namespace, permissions: Permissions) -> None:
    """Permissions and level are as the files say now, or, where they are wrong, as they were."""
    try:
        settings = _read(said)
        permissions.reload()
    except (BadFile, OSError) as wrong:
        log.error("nothing is changed: %s", wrong)
        return
    if not said.quiet:
        logs.set_level(settings["log.level"])
    log.warning("permissions and the level of the log were read again")


def _regret(reason: str, code: int) -> int:
    print(f"oncemq: {reason}", file=sys.stderr)
    return code


def _exit_code(failure: Exception) -> int:
    return next((code for kind, code in EXIT_CODES.items() if isinstance(failure, kind)), FAULT)


def _protect_secrets() -> None:
    """What this process holds does not get to others by a core dump."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


# --- The parts -----------------------------------------------------------------------------------


def _open_storage(settings: Settings, watch: Watch) -> Storage:
    kind, data = settings["server.storage"], settings["server.data"]
    begun = time.monotonic()
    if kind == "memory":
        log.warning("the storage is memory: NOTHING SURVIVES the end of this process")
        return MemoryStorage(time.monotonic)
    storage = _open_paged(data, watch) if kind == "paged" else _open_sql(settings)
    log.info("the storage was opened in %.3f s", time.monotonic() - begun)
    return storage


def _open_paged(data: Path, watch: Watch) -> Storage:
    disk: Disk = RealDisk(data, create=True)
    if watch.is_wanted:
        disk = TimedDisk(disk, time.monotonic, watch.syncs.note)
    try:
        return PagedStorage(
            disk,
            lambda: secrets.token_bytes(IDENTITY_BYTES),
            time.monotonic,
            turns=Turns(give_way, step_aside),
        )
    except MqError:
        disk.close()
        raise


def _open_sql(settings: Settings) -> Storage:
    try:
        from mqserver.storage.sql import SqlStorage
    except ImportError as missing:
        raise ImportError(f"{missing}; install it with: pip install 'oncemq[sql]'") from missing
    url = settings["server.storage"].removeprefix("sql:")
    return SqlStorage(url, settings["server.name"], time.monotonic)


def _open_orb(settings: Settings, entrance: Entrance, opening: Opening) -> NetworkOrb:
    return NetworkOrb(
        entrance.listen,
        advertise=entrance.advertise,
        tls=entrance.tls,
        authenticator=entrance.authenticator,
        authorize=opening.authorize,
        token=entrance.token,
        limits=entrance.limits,
        trusted=entrance.trusted | {settings["server.coordinator"]},
        # A database waits for its server, and knows nothing of turns.
        takes_turns=not settings["server.storage"].startswith("sql:"),
    )


def _permissions(settings: Settings, entrance: Entrance) -> Permissions:
    path = settings["server.permissions"]
    if path is not None:
        return Permissions.load(path, time.monotonic)
    if entrance.authenticator is not None:
        raise UnsafeSetting(
            "callers are told apart, and nothing says what each may do: set server.permissions "
            "(--permissions FILE) to a file that does"
        )
    return Permissions.everything()


def _node_settings(settings: Settings) -> NodeSettings:
    return NodeSettings(
        creates_queues=settings["server.create_queues"],
        is_shared=settings["server.storage"].startswith("sql:"),
        queues_max=settings["limits.queues"],
        message_bytes_max=settings["limits.message_bytes"],
        call_bytes_max=settings["limits.call_bytes"],
        branches_per_principal_max=settings["limits.transactions_per_principal"],
        branch_messages_max=settings["limits.transaction_messages"],
        branch_bytes_max=settings["limits.transaction_bytes"],
        lock_wait_s=settings["limits.lock_wait_s"],
        asking=AskingTimes(silent_s=settings["limits.silent_s"]),
    )


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="oncemq server",
        description="Runs a node, which keeps queues.",
        epilog="Every setting can also be in oncemq.toml or the environment: see `oncemq config`.",
    )
    add_flags(parser, Program.NODE)
    parser.add_argument("--quiet", action="store_true", help="log warnings only, and no logins")
    return parser.parse_args(arguments)


def _read(said: argparse.Namespace) -> Settings:
    settings = read_settings(Program.NODE, flags_of(said), said.config)
    if settings["server.storage"] == "paged" and settings["server.data"] is None:
        raise BadSetting("server.data is not set: say with --data DIR where messages are kept")
    if settings["limits.message_bytes"] + CALL_ROOM_BYTES > settings["limits.call_bytes"]:
        raise BadSetting(
            f"{settings.origin('limits.message_bytes')}: limits.message_bytes must be at least "
            f"{CALL_ROOM_BYTES} less than limits.call_bytes, {settings['limits.call_bytes']}"
        )
    return settings


def _is_json(settings: Settings) -> bool:
    return bool(settings["log.format"] == "json")


if __name__ == "__main__":
    sys.exit(main())
