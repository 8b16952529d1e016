"""A server of its own process for tests of the orb: run it, read its reference, kill it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import Protocol

from idl.call import Address, current_call
from idl.mapping import UnsignedLong, interface, operation
from idl.orb import Limits, NetworkOrb

START_S = 20.0


@interface()
class Echo(Protocol):
    """What the tests call."""

    @operation(idempotent=True)
    def same(self, data: bytes) -> bytes: ...

    @operation()
    def count(self) -> UnsignedLong: ...

    @operation(idempotent=True)
    def slow(self, milliseconds: UnsignedLong) -> UnsignedLong: ...

    @operation()
    def slow_once(self, milliseconds: UnsignedLong) -> UnsignedLong: ...

    @operation(idempotent=True)
    def caller(self) -> bytes: ...


class EchoServant:
    """Counts and echoes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0

    def same(self, data: bytes) -> bytes:
        return data

    def count(self) -> int:
        with self._lock:
            self._count += 1
            return self._count

    def slow(self, milliseconds: int) -> int:
        time.sleep(milliseconds / 1000)
        return milliseconds

    slow_once = slow

    def caller(self) -> bytes:
        return current_call().request_id


@dataclass
class ServerProcess:
    """The running server, known by its process."""

    process: subprocess.Popen[str]
    reference: str

    @property
    def port(self) -> int:
        return int(self.reference.rpartition(":")[2])

    def kill(self) -> None:
        """Ends it at once, as a crash would."""
        self.process.kill()
        self.process.wait()

    def terminate(self) -> int:
        """Asks it to end in order, and returns its exit code."""
        self.process.terminate()
        return self.process.wait(START_S)


def start_server(port: int = 0) -> ServerProcess:
    """Starts the server and waits until it can be called."""
    command = [sys.executable, "-m", "tests.integration.orb_server", str(port)]
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root)
    assert process.stdout is not None
    with process.stdout:
        reference = process.stdout.readline().strip()
    assert reference, "the server did not start"
    return ServerProcess(process, reference)


def main() -> None:
    import signal

    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    orb = NetworkOrb(Address("127.0.0.1", int(sys.argv[1])), limits=Limits(drain_s=5.0))
    published = orb.publish(EchoServant(), Echo, "echo")
    sys.stdout.write(orb.reference_of(published) + "\n")
    sys.stdout.flush()
    stopped.wait()
    orb.close()


if __name__ == "__main__":
    main()
