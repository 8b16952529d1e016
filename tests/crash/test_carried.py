"""A node that puts what databases carry crashes at every moment: all is there, and each once.

Every state that a power cut may leave is opened again, and its custodian looks once at a database
whose rows are what they were then. Rows are only removed when the node says that all is on disk.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable

import pytest

from idl.cos import otid_t
from idl.custody import CUSTODY, Mq_Custody, mqCarried
from idl.local import HERE, LocalOrb
from idl.otids import GTRID_BYTES, NULL_OTID, otid_of
from mqserver.errors import BranchEnded
from mqserver.storage.contract import EVERYTHING, NewMessage, QueueSettings, Selection
from mqserver.storage.paged import PagedSettings, PagedStorage
from mqserver.transactions.custodian import CarryingTimes, Custodian
from mqserver.transactions.custody import MARK, QUEUE, Custody
from mqserver.transactions.requests import give_up
from tests.crash.crash_states import CrashState, crash_states
from tests.crash.recording_disk import RecordingDisk

DATABASE = "orders"
SETTINGS = PagedSettings(segment_blocks=16)
TIMES = CarryingTimes(after_s=0.0, again_s=0.0, look_s=0.0, age_s=0.0)
IDS = itertools.count(1)
# So large that a record has many sectors, each of which may arrive or not.
PAYLOAD = bytes(2000)
NUMBERS = range(1, 8)
STATES_MIN = 200


def _gtrid(number: int) -> bytes:
    return number.to_bytes(GTRID_BYTES)


class Relay:
    """The coordinator and its database: the transactions whose rows are there."""

    def __init__(self, rows: set[int], note: Callable[[object], None] = lambda what: None) -> None:
        self.rows = rows
        self._note = note

    def getCarriers(self) -> tuple[bytes, tuple[str, ...]]:
        """See `Mq_Custody.getCarriers`."""
        return bytes(8), (DATABASE,)

    def getCarried(
        self, database: str, secret: str, age: int, after: otid_t
    ) -> tuple[mqCarried, ...]:
        """See `Mq_Custody.getCarried`."""
        behind = 0 if after == NULL_OTID else int.from_bytes(after.tid)
        return tuple([mqCarried(otid_of(_gtrid(n)), b"") for n in sorted(self.rows) if n > behind])

    def forgetCarried(self, database: str, secret: str, otids: tuple[otid_t, ...]) -> None:
        """See `Mq_Custody.forgetCarried`."""
        for otid in otids:
            number = int.from_bytes(otid.tid)
            # Before it happens: who dies just then may or may not have removed it.
            self._note(("removing", number))
            self.rows.discard(number)
            self._note(("removed", number))


class Node:
    """A storage on a disk, what is carried there, and who looks after it, without a thread."""

    def __init__(self, disk: RecordingDisk, relay: Relay, kind: type[Custody] = Custody) -> None:
        self.relay = relay
        self.storage = PagedStorage(disk, lambda: bytes(16), time.monotonic, SETTINGS)
        self.custody = kind(
            self.storage,
            time.monotonic,
            lambda: next(IDS).to_bytes(16),
            lambda branch: give_up(self.storage, branch),
        )
        self.custody.load()
        orb = LocalOrb()
        orb.publish(relay, Mq_Custody, CUSTODY)
        self.custodian = Custodian(orb, str(HERE), self.custody, time.monotonic, TIMES)
        self.custodian._take_over = self._take_over

    def hold(self, number: int) -> None:
        """In memory only."""
        self.custody.get_ready()
        self._store(_gtrid(number) + b"n1", number)

    def commit_row(self, number: int) -> None:
        """The database has it; that is on its disk."""
        self.relay.rows.add(number)
        self.relay._note(("row", number))

    def deliver(self, number: int) -> None:
        """See `CarriedServant.deliver`."""
        own = _gtrid(number) + b"n1"
        self.custody.deliver(own, DATABASE, lambda it: self.storage.commit_one_phase(it, False))

    def _take_over(self, gtrid: bytes, database: str, content: bytes) -> bool:
        number = int.from_bytes(gtrid)
        try:
            self.storage.rollback(gtrid + b"n1")
        except BranchEnded:
            return False
        own = self.custody.branch_of(gtrid)
        return self.custody.take_over(
            own, database, lambda it: self._store(it, number), self.storage.commit_one_phase
        )

    def work(self, number: int) -> None:
        """Somebody else's work, which is forced, and with it all that was done before."""
        own = b"other%d" % number
        self.storage.store(own, "other", [NewMessage(PAYLOAD, 0)])
        self.storage.commit_one_phase(own)

    def _store(self, branch: bytes, number: int) -> None:
        self.storage.store(branch, "q", [NewMessage(PAYLOAD, 0, group=number)])

    def there(self) -> Counter[int]:
        """How often each transaction's message is there."""
        return Counter(message.group for message in self.storage.browse("q", EVERYTHING, 0, 100))


def _work(disk: RecordingDisk, kind: type[Custody]) -> None:
    node = Node(disk, Relay(set(), disk.note), kind)
    for name in ("q", "other"):
        node.storage.create_queue(name, QueueSettings())
    node.custody.get_ready()
    disk.note("ready")
    for number in NUMBERS:
        node.hold(number)
        if number % 3 == 0:
            # Its owner goes away, and no row is committed.
            give_up(node.storage, _gtrid(number) + b"n1")
            continue
        node.commit_row(number)
        if number % 3 == 1:
            node.deliver(number)
        else:
            # The owner has died: the look finds it.
            node.custodian.look_after()
        if number == 4:
            node.work(number)
        if number >= 5:
            node.custodian.look_after()
    node.storage.checkpoint()
    node.custodian.look_after()
    disk.note("end")


def _rows_of(state: CrashState) -> list[set[int]]:
    """What may be in the database: who is being removed is there, or not any more."""
    rows: set[int] = set()
    removing: set[int] = set()
    for event in state.events:
        if not isinstance(event, tuple):
            continue
        what, number = event
        if what == "row":
            rows.add(number)
        elif what == "removing":
            removing.add(number)
        elif what == "removed":
            removing.discard(number)
            rows.discard(number)
    return [rows, rows - removing] if removing else [rows]


def _judge(state: CrashState) -> None:
    committed = {event[1] for event in state.events if isinstance(event, tuple)}
    for rows in _rows_of(state):
        node = Node(state.disk(), Relay(set(rows)))
        assert node.custodian._looked(0.0, 1.0) is None, str(state)
        assert node.there() == Counter(committed), f"{state}: {node.there()}, not {committed}"
        # Once more, and what is on disk is removed.
        node.custodian.look_after()
        node.custodian.look_after()
        assert node.there() == Counter(committed), f"{state}: {node.there()}, not {committed}"
        assert not node.relay.rows, str(state)
        assert not node.storage.browse(QUEUE, Selection(group=MARK), 0, 10), str(state)
        assert not node.storage.branches(), str(state)
        node.storage.close()


def _judge_all(kind: type[Custody] = Custody) -> int:
    disk = RecordingDisk()
    _work(disk, kind)
    states = [state for state in crash_states(disk.trace) if "ready" in state.events]
    for state in states:
        _judge(state)
    return len(states)


def test_after_every_crash_what_rows_carried_is_there_once() -> None:
    assert _judge_all() >= STATES_MIN


class MarkedBefore(Custody):
    """A planted bug: the mark is in a write of its own, before that of the puts."""

    def _store_mark(self, branch: bytes, gtrid: bytes, database: str) -> int:
        own = b"mark" + self._new_id()
        key = super()._store_mark(own, gtrid, database)
        self._storage.commit_one_phase(own, False)
        return key


class NotForced(Custody):
    """A planted bug: rows are removed of what is not on disk."""

    def force(self) -> None:
        """Nothing is."""


@pytest.mark.parametrize("kind", [MarkedBefore, NotForced])
def test_a_planted_bug_is_noticed(kind: type[Custody]) -> None:
    with pytest.raises(AssertionError, match="a crash behind entry"):
        _judge_all(kind)
