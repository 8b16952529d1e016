"""Rows of databases are taken over where nobody told of them, and removed when all is on disk."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from time import monotonic as clock

import pytest

from idl import system
from idl.cos import otid_t
from idl.custody import CUSTODY, Mq_Custody, mqCarried, node_of
from idl.local import HERE, LocalOrb
from idl.otids import GTRID_BYTES, IDENTITY_BYTES, NULL_OTID, otid_of
from mqserver.errors import QueueNotFound
from mqserver.storage.contract import EVERYTHING, NewMessage, QueueSettings
from mqserver.storage.memory import MemoryStorage
from mqserver.transactions.custodian import CarryingTimes, Custodian
from mqserver.transactions.custody import Custody, NotOurs

TIMES = CarryingTimes(
    after_s=0.05,
    again_s=0.05,
    look_s=0.1,
    age_s=0.0,
    start_s=0.2,
    patience_s=2.0,
    ask_s=0.2,
)
IDENTITY = b"identity"
DATABASE = "orders"
WAIT_S = 5.0


def gtrid(number: int) -> bytes:
    return IDENTITY + number.to_bytes(GTRID_BYTES - IDENTITY_BYTES)


class Relay:
    """The coordinator and its database: rows by transaction, or it fails."""

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes] = {}
        self.databases: tuple[str, ...] = (DATABASE,)
        self.trouble: Exception | None = None
        self.may_forget = True
        self.secrets: set[str] = set()
        self.ages: list[int] = []
        self.asked = 0
        self.pause_s = 0.0
        self.changed = threading.Condition()

    def getCarriers(self) -> tuple[bytes, tuple[str, ...]]:
        self.asked += 1
        time.sleep(self.pause_s)
        self._fail()
        return IDENTITY, self.databases

    def getCarried(
        self, database: str, secret: str, age: int, after: otid_t
    ) -> tuple[mqCarried, ...]:
        self._fail()
        assert database == DATABASE
        self.secrets.add(secret)
        self.ages.append(age)
        behind = b"" if after == NULL_OTID else after.tid
        # Two at a time, so that there is always a next question.
        found = sorted(each for each in self.rows if each > behind)[:2]
        return tuple([mqCarried(otid_of(each), self.rows[each]) for each in found])

    def forgetCarried(self, database: str, secret: str, otids: tuple[otid_t, ...]) -> None:
        self._fail()
        if not self.may_forget:
            raise system.TRANSIENT("not now")
        with self.changed:
            for otid in otids:
                self.rows.pop(otid.tid, None)
            self.changed.notify_all()

    def _fail(self) -> None:
        if self.trouble is not None:
            raise self.trouble

    def await_empty(self) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: not self.rows, WAIT_S)


class World:
    """A node's storage, its custody and its custodian, and a coordinator."""

    def __init__(self) -> None:
        ids = itertools.count()
        self.relay = Relay()
        self.orb = LocalOrb()
        self.orb.publish(self.relay, Mq_Custody, CUSTODY)
        self.storage = MemoryStorage(lambda: 0.0)
        self.storage.create_queue("q", QueueSettings())
        self.custody = Custody(
            self.storage,
            clock,
            lambda: next(ids).to_bytes(16),
            lambda branch: None,
        )
        self.refused: list[bytes] = []
        self.custodian = Custodian(self.orb, str(HERE), self.custody, clock, TIMES)

    def take_over(self, gtrid: bytes, database: str, content: bytes) -> bool:
        if content == b"forged":
            raise NotOurs
        if content == b"stuck":
            raise QueueNotFound("nowhere")
        commit = self.storage.commit_one_phase
        return self.custody.take_over(
            self.custody.branch_of(gtrid),
            database,
            lambda own: self.storage.store(own, "q", [NewMessage(content, 0)]),
            commit,
        )

    @property
    def put(self) -> list[bytes]:
        return [each.payload for each in self.storage.browse("q", EVERYTHING, 0, 100)]


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.custodian.close()


def test_at_a_start_what_was_carried_is_put_before_anybody_asks(world: World) -> None:
    world.custody.get_ready()
    world.relay.rows = {gtrid(number): b"%d" % number for number in range(5)}
    world.custodian.start(world.take_over)
    assert world.put == [b"0", b"1", b"2", b"3", b"4"]
    assert world.relay.secrets == {world.custody.secret}
    assert world.relay.ages[0] == 0
    assert world.relay.await_empty()
    assert len(world.put) == 5


def test_a_start_does_not_wait_where_nothing_was_ever_carried(world: World) -> None:
    world.relay.trouble = system.COMM_FAILURE("away")
    begun = clock()
    world.custodian.start(world.take_over)
    assert clock() - begun < TIMES.start_s


def test_a_start_waits_a_while_for_a_silent_coordinator_and_no_longer(world: World) -> None:
    world.custody.get_ready()
    world.relay.trouble = system.COMM_FAILURE("away")
    world.relay.rows = {gtrid(1): b"1"}
    begun = clock()
    world.custodian.start(world.take_over)
    assert TIMES.start_s <= clock() - begun < TIMES.start_s + 2.0
    assert world.put == []
    world.relay.trouble = None
    assert world.relay.await_empty()
    assert world.put == [b"1"]


def test_rows_are_removed_only_once_it_is_on_disk(world: World) -> None:
    world.custody.get_ready()
    forced: list[int] = []
    force = world.storage.force

    def noted() -> None:
        forced.append(len(world.relay.rows))
        force()

    world.storage.force = noted  # type: ignore[method-assign]
    world.relay.rows = {gtrid(1): b"1"}
    world.custodian.start(world.take_over)
    assert world.relay.await_empty()
    assert forced[0] == 1


def test_a_mark_stays_until_its_row_is_gone(world: World) -> None:
    world.custody.get_ready()
    world.relay.may_forget = False
    world.relay.rows = {gtrid(1): b"1"}
    world.custodian.start(world.take_over)
    for _ in range(3):
        world.custodian.look_at(DATABASE)
    assert world.custody.is_put(gtrid(1))
    assert world.put == [b"1"]
    world.relay.may_forget = True
    assert world.relay.await_empty()


def test_who_asks_is_answered_when_all_rows_were_looked_at(world: World) -> None:
    world.custodian.start(world.take_over)
    world.custody.get_ready()
    world.relay.rows = {gtrid(1): b"1"}
    world.custodian.look_at(DATABASE)
    assert world.put == [b"1"]


@pytest.mark.parametrize("trouble", [system.TRANSIENT("away"), system.COMM_FAILURE("gone")])
def test_who_asks_hears_that_nobody_knows(world: World, trouble: Exception) -> None:
    world.custodian.start(world.take_over)
    world.custody.get_ready()
    world.custodian.look_at(DATABASE)
    world.relay.trouble = trouble
    with pytest.raises(system.TRANSIENT):
        world.custodian.look_at(DATABASE)


def test_a_database_that_is_not_known_was_not_looked_at(world: World) -> None:
    world.custodian.start(world.take_over)
    world.custody.get_ready()
    with pytest.raises(system.TRANSIENT):
        world.custodian.look_at("another")


def test_a_row_that_cannot_be_put_keeps_no_other_from_it(world: World) -> None:
    world.custody.get_ready()
    world.custodian.start(world.take_over)
    world.relay.rows = {gtrid(1): b"stuck", gtrid(2): b"2", gtrid(3): b"forged", gtrid(4): b"4"}
    with pytest.raises(system.TRANSIENT):
        world.custodian.look_at(DATABASE)
    assert world.put == [b"2", b"4"]
    # What is not ours is not waited for.
    del world.relay.rows[gtrid(1)]
    world.custodian.look_at(DATABASE)
    assert list(world.relay.rows) in ([gtrid(3)], [gtrid(2), gtrid(3), gtrid(4)])


def test_it_says_why_a_transaction_cannot_be_carried(world: World) -> None:
    assert "does not know yet" in world.custodian.why_not(gtrid(1), DATABASE)
    world.custodian.start(world.take_over)
    world.custodian.look_at(DATABASE)
    assert world.custodian.why_not(gtrid(1), DATABASE) == ""
    assert "does not know yet" in world.custodian.why_not(gtrid(1), "another")
    assert "another coordinator" in world.custodian.why_not(bytes(GTRID_BYTES), DATABASE)
    alone = Custodian(world.orb, "", world.custody, clock, TIMES)
    assert alone.why_not(gtrid(1), DATABASE) == "the node has no coordinator"
    # Nobody is kept waiting for what never comes.
    begun = clock()
    with pytest.raises(system.TRANSIENT):
        alone.look_at(DATABASE)
    assert clock() - begun < TIMES.patience_s / 2


def test_a_database_of_which_nobody_has_told_is_asked_about(world: World) -> None:
    assert not world.custodian.knows(DATABASE)
    world.custodian.ask_about(DATABASE)
    assert world.custodian.knows(DATABASE)
    assert world.custodian.why_not(gtrid(1), DATABASE) == ""


def test_one_that_does_not_carry_is_asked_about_now_and_then(world: World) -> None:
    for _ in range(20):
        world.custodian.ask_about("another")
    assert world.relay.asked == 1
    time.sleep(TIMES.ask_s)
    world.relay.databases = (DATABASE, "another")
    world.custodian.ask_about("another")
    assert world.relay.asked == 2
    assert world.custodian.knows("another")


def test_many_who_want_to_know_at_once_have_it_asked_once(world: World) -> None:
    world.relay.pause_s = TIMES.ask_s / 2
    asking = [threading.Thread(target=world.custodian.ask_about, args=(DATABASE,)) for _ in "1234"]
    for each in asking:
        each.start()
    for each in asking:
        each.join()
    assert world.custodian.knows(DATABASE)
    assert world.relay.asked == 1


def test_a_silent_coordinator_is_asked_again_later_and_nobody_fails(world: World) -> None:
    world.relay.trouble = system.COMM_FAILURE("away")
    world.custodian.ask_about(DATABASE)
    assert not world.custodian.knows(DATABASE)
    world.relay.trouble = None
    time.sleep(TIMES.ask_s)
    world.custodian.ask_about(DATABASE)
    assert world.custodian.knows(DATABASE)


def test_the_secret_is_shown_and_the_digest_stands_in_rows() -> None:
    assert node_of("a") != node_of("b")
    assert len(node_of("a")) == 32
