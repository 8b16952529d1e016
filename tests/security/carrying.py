"""A node that is to put what databases carry, and a coordinator that says what a test wants said.

Nobody needs a database for that: the coordinator shows rows to nodes, and here they are its own.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from idl import system
from idl.call import Address
from idl.cos import otid_t
from idl.custody import CARRIED, CUSTODY, Mq_Carried, Mq_Custody, mqCarried
from idl.mq import mqBranch, mqWork
from idl.orb import NetworkOrb
from idl.otids import IDENTITY_BYTES, NULL_OTID, otid_of
from mqserver.node import NodeSettings
from mqserver.storage.contract import EVERYTHING, Storage
from mqserver.transactions.custodian import CarryingTimes
from tests.security.guarded_node import QUICK, SMALL, GuardedNode, batch

DATABASE = "orders"
# Rows are looked for when somebody asks, and otherwise hardly ever.
TIMES = CarryingTimes(
    after_s=0.05, again_s=0.05, look_s=30.0, age_s=0.0, start_s=0.5, patience_s=3.0, longest_s=0.5
)
SOON_S = 10.0
AT_ONCE = 100

Answer = Callable[[otid_t], tuple[mqCarried, ...]]


class Relay:
    """The coordinator and its databases: rows by transaction, or whatever `answer` says."""

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes] = {}
        self.databases: tuple[str, ...] = (DATABASE,)
        # What databases answer that are not to show their rows.
        self.answers: dict[str, Answer] = {}
        self.may_forget = True
        self.asked = 0
        self.removals = 0
        self._orb = NetworkOrb(Address("127.0.0.1", 0), limits=QUICK, timeout_s=2.0)
        self._orb.publish(self, Mq_Custody, CUSTODY)
        assert self._orb.address is not None
        self.address = self._orb.address

    def close(self) -> None:
        """Nobody is there any more."""
        self._orb.close()

    def getCarriers(self) -> tuple[bytes, tuple[str, ...]]:
        """See `Mq_Custody.getCarriers`."""
        return bytes(IDENTITY_BYTES), self.databases

    def getCarried(
        self, database: str, secret: str, age: int, after: otid_t
    ) -> tuple[mqCarried, ...]:
        """See `Mq_Custody.getCarried`."""
        self.asked += 1
        if database in self.answers:
            return self.answers[database](after)
        behind = b"" if after == NULL_OTID else after.tid
        found = sorted(each for each in list(self.rows) if each > behind)[:AT_ONCE]
        return tuple([mqCarried(otid_of(each), self.rows[each]) for each in found])

    def forgetCarried(self, database: str, secret: str, otids: tuple[otid_t, ...]) -> None:
        """See `Mq_Custody.forgetCarried`."""
        self.removals += 1
        if not self.may_forget:
            raise system.TRANSIENT("not now")
        for otid in otids:
            self.rows.pop(otid.tid, None)


class Held(NamedTuple):
    """Puts that a node holds, and what is to stand in their row."""

    branch: mqBranch
    content: bytes

    @property
    def gtrid(self) -> bytes:
        """The transaction."""
        return self.branch.otid.tid


class Carrying(GuardedNode):
    """A guarded node, and the coordinator that it asks for rows."""

    def __init__(
        self, storage: Storage | None = None, times: CarryingTimes = TIMES, **settings: object
    ) -> None:
        self.relay = Relay()
        made: NodeSettings = replace(SMALL, carrying=times, **settings)  # type: ignore[arg-type]
        super().__init__(storage, made, self.relay.address)
        eventually(lambda: self.knows(), "the node knows its coordinator")

    def knows(self) -> bool:
        """Whether puts may be held; asking makes the node find out."""
        return not self.node._custodian.why_not(bytes(32), DATABASE)

    def close(self) -> None:
        """Ends the node and all its callers, then the coordinator."""
        super().close()
        self.relay.close()

    def carried(self, who: str) -> Mq_Carried:
        """The node, as this caller reaches it with what is to be carried."""
        return self.orb(who).proxy(self.reference(CARRIED), Mq_Carried)

    def hold(
        self, queue: str, *payloads: bytes, name: str = "n1", otid: otid_t | None = None
    ) -> Held:
        """Puts of alice's are held."""
        branch = mqBranch(otid or self.new_otid(), name, None)
        work = (mqWork(queue, batch(*payloads), ()),)
        content, _, _ = self.carried("alice").hold(branch, 1, work, DATABASE)
        return Held(branch, content)

    def commit(self, held: Held) -> None:
        """The database has committed the row."""
        self.relay.rows[held.gtrid] = held.content

    def lost(self, queue: str, *payloads: bytes, name: str = "n1") -> Held:
        """The same; then what was held is lost, as in a restart: only the row has it."""
        held = self.hold(queue, *payloads, name=name)
        self.as_node("alice").rollbackBranch(held.branch)
        self.commit(held)
        return held

    def look(self) -> None:
        """All rows have been looked at. Raises TRANSIENT."""
        self.node._custodian.look_at(DATABASE)

    def payloads(self, queue: str) -> list[bytes]:
        """What is in the queue, in order."""
        if queue not in {info.name for info in self.node.storage.queues()}:
            return []
        return [each.payload for each in self.node.storage.browse(queue, EVERYTHING, 0, 10_000)]

    def await_empty(self) -> None:
        """All rows are removed, and so are the marks."""
        eventually(lambda: not self.relay.rows, "rows are removed")
        eventually(lambda: not len(self.node.custody), "marks are removed")


@contextlib.contextmanager
def busy(count: int, work: Callable[[], object]) -> Iterator[None]:
    """So many threads do this once while what is inside happens; all are awaited."""
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for thread in threads:
            thread.join(SOON_S)
    assert not any(thread.is_alive() for thread in threads)


def eventually(is_so: Callable[[], bool], what: str) -> None:
    """It comes to be so, soon."""
    deadline = time.monotonic() + SOON_S
    while not is_so():
        assert time.monotonic() < deadline, f"{what}: not within {SOON_S} s"
        time.sleep(0.01)
