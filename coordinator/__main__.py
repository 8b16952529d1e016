"""The coordinator as a process: read its settings and its log, finish what was decided, serve.

    python -m coordinator --data DIR --listen HOST:PORT

`oncemq coordinator` is the same. It ends with 0 when it was told to stop (SIGTERM, SIGINT), and
after that another can take its directory; with 2 when its settings are wrong or unsafe, with 3 when
its directory is in use, damaged or of another kind, and with 4 when its disk has failed it while it
ran: what it had decided is then found on disk at the next start.
"""

from __future__ import annotations

import argparse
import logging
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from coordinator import coordination, interfaces
from coordinator.decision_log import DecisionLog
from coordinator.live import Settings
from coordinator.service import Service
from coordinator.tasks import ThreadTasks
from idl import system
from idl.access import Authenticator, Certificates, FirstOf, Tls, Tokens, UnsafeSetting
from idl.call import Address, Call
from idl.mapping import InvalidValue
from idl.orb import NetworkOrb
from mqserver.errors import StorageError
from mqserver.storage.disk import RealDisk

OK, WRONG_SETTINGS, NO_STORE, DISK_FAILED = 0, 2, 3, 4
DEFAULT_LISTEN = "127.0.0.1:7410"
DRAIN_S = 10.0
LOCAL = "local"

log = logging.getLogger("oncemq.coordinator")


@dataclass(frozen=True)
class Options:
    """What was said on the command line."""

    data: Path
    listen: Address
    advertise: Address | None
    tls: Tls | None
    authenticator: Authenticator | None
    operators: frozenset[str]
    trusted: frozenset[Address]
    settings: Settings
    is_quiet: bool


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the coordinator until it is told to stop; its exit code."""
    if not __debug__:
        print(
            "oncemq: the coordinator checks itself by assertions; run it without -O",
            file=sys.stderr,
        )
        return WRONG_SETTINGS
    try:
        options = _read(arguments)
    except (UnsafeSetting, InvalidValue, OSError) as wrong:
        print(f"oncemq: {wrong}", file=sys.stderr)
        return WRONG_SETTINGS
    logging.basicConfig(
        level=logging.WARNING if options.is_quiet else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    stopping = _Stopping()
    try:
        disk = RealDisk(options.data, create=True)
        decisions = DecisionLog(disk, secrets.token_bytes)
    except StorageError as refused:
        print(f"oncemq: {refused}", file=sys.stderr)
        return NO_STORE
    tasks = ThreadTasks(time.monotonic, stopping.because)
    try:
        orb = _orb(options)
    except (UnsafeSetting, OSError) as wrong:
        print(f"oncemq: cannot listen on {options.listen}: {wrong}", file=sys.stderr)
        decisions.close()
        return WRONG_SETTINGS
    service = Service(
        orb, decisions, tasks, secrets.token_bytes, options.settings, stopping.because
    )
    service.start()
    interfaces.publish(service)
    coordination.publish(service)
    # Read by whoever started us, who may not have said which port.
    print(f"coordinator {decisions.identity.hex()} listens on {orb.address}", flush=True)
    failure = stopping.wait()
    return _stop(service, orb, tasks, failure)


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


def _orb(options: Options) -> NetworkOrb:
    return NetworkOrb(
        options.listen,
        advertise=options.advertise,
        tls=options.tls,
        authenticator=options.authenticator,
        authorize=_authorize(options),
        trusted=options.trusted,
    )


def _authorize(options: Options) -> Callable[[Call, str, str], None]:
    operators = options.operators if options.authenticator is not None else frozenset({LOCAL})

    def authorize(call: Call, object_name: str, operation: str) -> None:
        if object_name == coordination.ADMIN and call.principal.name not in operators:
            raise system.NO_PERMISSION(f"{operation} is for operators")

    return authorize


def _read(arguments: Sequence[str] | None) -> Options:
    parser = argparse.ArgumentParser(
        prog="oncemq coordinator",
        description="Runs the coordinator, which decides transactions and has them carried out.",
        epilog="Beyond 127.0.0.1 it needs TLS and tokens or client certificates to start.",
    )
    parser.add_argument("--data", type=Path, required=True, help="the directory of its log")
    parser.add_argument("--listen", default=DEFAULT_LISTEN, help="HOST:PORT (default %(default)s)")
    parser.add_argument("--advertise", help="HOST:PORT that others reach it by, if another")
    parser.add_argument("--tls-authority", type=Path, help="certificate that signs the others'")
    parser.add_argument("--tls-certificate", type=Path, help="its own certificate")
    parser.add_argument("--tls-key", type=Path, help="its own key, if not with the certificate")
    parser.add_argument("--tokens", type=Path, help="file of name:sha256 of those who may connect")
    parser.add_argument("--operator", action="append", default=[], help="who may use `oncemq tx`")
    parser.add_argument("--trust", action="append", default=[], help="HOST:PORT of a node")
    parser.add_argument("--session-timeout", type=float, default=Settings.session_s, metavar="S")
    parser.add_argument("--quiet", action="store_true", help="log warnings only, and no logins")
    found = parser.parse_args(arguments)
    tls = None
    if found.tls_authority is not None:
        tls = Tls(found.tls_authority, found.tls_certificate, found.tls_key)
    return Options(
        data=found.data,
        listen=Address.parse(found.listen),
        advertise=None if found.advertise is None else Address.parse(found.advertise),
        tls=tls,
        authenticator=_authenticator(found.tokens, tls),
        operators=frozenset(found.operator),
        trusted=frozenset(Address.parse(each) for each in found.trust),
        settings=Settings(session_s=found.session_timeout),
        is_quiet=found.quiet,
    )


def _authenticator(tokens: Path | None, tls: Tls | None) -> Authenticator | None:
    ways: list[Authenticator] = []
    if tokens is not None:
        ways.append(Tokens.load(tokens))
    if tls is not None:
        ways.append(Certificates())
    return FirstOf(ways) if ways else None


if __name__ == "__main__":
    sys.exit(main())
