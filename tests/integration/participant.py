"""A participant in a process of its own: a paged store, its branches as resources, and a worker.

    python -m tests.integration.participant FOLDER PORT

It writes where it listens to standard output and ends with its standard input. With port 0 the
system chooses one; started again it must be given the same, because references name it.
"""

from __future__ import annotations

import secrets
import sys
import threading
import time
import zlib
from typing import Protocol

from idl import system
from idl.call import Address
from idl.cos import RecoveryCoordinator, Vote, otid_t
from idl.mapping import String, interface, operation
from idl.orb import NetworkOrb
from idl.otids import split_otid
from mqserver.errors import BranchEnded, QueueExists
from mqserver.storage.contract import EVERYTHING, NewMessage, Outcome, QueueSettings, Storage
from mqserver.storage.disk import RealDisk
from mqserver.storage.paged import PagedSettings, PagedStorage
from mqserver.transactions.orphans import AskingTimes, Orphans
from mqserver.transactions.resource import Resources, branch_id, prepare

QUEUE = "orders"
SETTINGS = PagedSettings(segment_blocks=256, log_bytes_max=256 * 1024)
TIMES = AskingTimes(first_s=0.5, longest_s=2.0, call_s=2.0, silent_s=5.0)


@interface("Integration")
class Worker(Protocol):
    """What the test asks of a participant."""

    @operation(idempotent=True)
    def push(
        self, otid: otid_t, name: String, message: bytes, recovery: RecoveryCoordinator | None
    ) -> Vote:
        """The branch has put the message, and votes."""

    @operation(idempotent=True)
    def messages(self) -> tuple[bytes, ...]:
        """What is in the queue."""

    @operation(idempotent=True)
    def unfinished(self) -> tuple[String, ...]:
        """The branches that have not ended."""


class WorkerServant:
    """See `Worker`."""

    def __init__(self, orb: NetworkOrb, storage: Storage) -> None:
        self._orb = orb
        self._storage = storage

    def push(
        self, otid: otid_t, name: str, message: bytes, recovery: RecoveryCoordinator | None
    ) -> Vote:
        assert recovery is not None
        branch = branch_id(split_otid(otid)[0], name)
        new = NewMessage(message, zlib.crc32(message))
        # Repeated, it is prepared already, and votes again.
        if self._storage.outcome(branch) is Outcome.UNKNOWN:
            try:
                self._storage.store(branch, QUEUE, [new])
            except BranchEnded as ended:
                raise system.TRANSACTION_ROLLEDBACK("the branch is over") from ended
        return prepare(self._storage, branch, self._orb.reference_of(recovery).encode())

    def messages(self) -> tuple[bytes, ...]:
        found = self._storage.browse(QUEUE, EVERYTHING, 0, 1_000_000)
        return tuple(message.payload for message in found)

    def unfinished(self) -> tuple[str, ...]:
        return tuple(f"{i.branch.hex()} {i.outcome.name}" for i in self._storage.branches())


def main(folder: str, port: str) -> None:
    """Recovers, publishes, and asks for what is in doubt."""
    disk = RealDisk(folder, create=True)
    storage = PagedStorage(disk, lambda: secrets.token_bytes(16), time.monotonic, SETTINGS)
    try:
        storage.create_queue(QUEUE, QueueSettings())
    except QueueExists:
        sys.stderr.write(f"{len(storage.branches())} branches are in doubt\n")
    orb = NetworkOrb(Address("127.0.0.1", int(port)))
    resources = Resources(orb, storage)
    resources.publish()
    orb.publish(WorkerServant(orb, storage), Worker, "worker")
    orphans = Orphans(orb, resources, time.monotonic, TIMES)
    threading.Thread(target=_ask, args=(orphans,), daemon=True).start()
    sys.stdout.write(f"participant listens on {orb.address}\n")
    sys.stdout.flush()
    sys.stdin.read()


def _ask(orphans: Orphans) -> None:
    orphans.ask_at_once()
    while True:
        due = orphans.ask_those_due()
        time.sleep(max(due - time.monotonic(), 0.1))


if __name__ == "__main__":
    main(*sys.argv[1:])
