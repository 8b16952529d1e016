"""A coordinator on a recording disk, and participants that outlive it: one history, step by step.

Everything is the real thing but the disk, the time and the participants. Work that goes on beside
is done in the order in which it was asked for, whenever somebody waits. What participants promise
and do, and what clients are told, is noted in the trace of the disk, so that after a crash at any
moment everybody is as they were then: `Story.after` reads the notes, and `judge` restarts the
coordinator and says whether all ends as it should.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from coordinator import coordination, interfaces
from coordinator.decision_log import DecisionLog
from coordinator.live import Settings
from coordinator.service import Service
from idl import system
from idl.coordination import Mq_Coordinator, Mq_Settler, mqParticipant, mqTransactionKey
from idl.cos import (
    Coordinator,
    HeuristicHazard,
    HeuristicMixed,
    HeuristicRollback,
    NotPrepared,
    RecoveryCoordinator,
    Resource,
    Status,
    Terminator,
    TransactionFactory,
    Vote,
    otid_t,
)
from idl.local import HERE, LocalOrb
from idl.otids import RECOVERY, issue, member_name, otid_of, split_otid
from tests.crash.recording_disk import RecordingDisk

APPLICATION = "import"
COMMITTED, ROLLED_BACK, PREPARED, WORKING = "committed", "rolled back", "prepared", "working"
SETTINGS = Settings(settle_s=0.2, retry_s=0.1, retry_s_max=1.0)
# So small that a history of some transactions fills segments, and is summed up in a record.
SEGMENT_BLOCKS = 4
LOG_BYTES_MAX = 3000


# --- Time and work beside ------------------------------------------------------------------------


class StepTasks:
    """See `Tasks`: nothing goes on by itself; who waits does what is to be done."""

    def __init__(self) -> None:
        self._time = 0.0
        self._order = itertools.count()
        self._now: deque[tuple[Callable[..., object], tuple[object, ...]]] = deque()
        self._later: list[tuple[float, int, Callable[..., object], tuple[object, ...]]] = []

    def now(self) -> float:
        """See `Tasks.now`."""
        return self._time

    def spawn(self, work: Callable[..., object], *arguments: object) -> None:
        """See `Tasks.spawn`."""
        self._now.append((work, arguments))

    def after(self, delay_s: float, work: Callable[..., object], *arguments: object) -> None:
        """See `Tasks.after`."""
        heapq.heappush(self._later, (self._time + delay_s, next(self._order), work, arguments))

    def promise(self) -> StepPromise:
        """See `Tasks.promise`."""
        return StepPromise(self)

    def go_on(self, is_over: Callable[[], bool], within_s: float) -> bool:
        """Does what is to be done until it is over, or the time is up; whether it is over."""
        end = self._time + within_s
        while not is_over():
            if self._now:
                work, arguments = self._now.popleft()
            elif self._later and self._later[0][0] <= end:
                self._time, _, work, arguments = heapq.heappop(self._later)
            else:
                return False
            work(*arguments)
        return True


class StepPromise:
    """See `Promise`."""

    def __init__(self, tasks: StepTasks) -> None:
        self._tasks = tasks
        self._values: list[Any] = []

    def keep(self, value: Any) -> None:
        """See `Promise.keep`."""
        self._values = self._values or [value]

    def is_kept(self) -> bool:
        """See `Promise.is_kept`."""
        return bool(self._values)

    def wait(self, timeout_s: float | None = None) -> Any:
        """See `Promise.wait`."""
        if not self._tasks.go_on(self.is_kept, timeout_s or 1e6):
            raise TimeoutError
        return self._values[0]


# --- Participants --------------------------------------------------------------------------------

Note = Callable[[tuple[Any, ...]], None]


@dataclass
class Part:
    """A participant whose disk never fails, as `Resource` and as whoever settles it."""

    name: str
    note: Note
    state: str = WORKING
    vote: Vote = Vote.COMMIT
    # What it does beside: die, for those who want to see what happens then.
    before_vote: Callable[[], object] = lambda: None
    is_by_hand: bool = False
    is_silent: bool = False
    recovery: str = ""

    def prepare(self) -> Vote:
        """See `Resource.prepare`."""
        self.before_vote()
        if self.state in (WORKING, PREPARED) and self.vote is Vote.COMMIT:
            self._become(PREPARED)
            return Vote.COMMIT
        if self.vote is Vote.READ_ONLY:
            return Vote.READ_ONLY
        self._become(ROLLED_BACK)
        return Vote.ROLLBACK

    def commit(self) -> None:
        """See `Resource.commit`."""
        self._check_reached()
        if self.is_by_hand:
            self._become(ROLLED_BACK)
            raise HeuristicRollback()
        if self.state not in (PREPARED, COMMITTED):
            raise NotPrepared()
        self._become(COMMITTED)

    def commit_one_phase(self) -> None:
        """See `Resource.commit_one_phase`."""
        if self.state == WORKING:
            self._become(COMMITTED)
        if self.is_silent:
            raise system.COMM_FAILURE("the answer is lost", system.Completion.MAYBE)

    def rollback(self) -> None:
        """See `Resource.rollback`."""
        self._check_reached()
        self._become(ROLLED_BACK)

    def forget(self) -> None:
        """See `Resource.forget`."""

    def commitBranches(self, branches: tuple[otid_t, ...]) -> tuple[otid_t, ...]:
        """See `Mq_Settler.commitBranches`. It speaks for one branch, so it is never asked."""
        return branches

    def getEnded(self, branches: tuple[otid_t, ...]) -> tuple[otid_t, ...]:
        """See `Mq_Settler.getEnded`: no node decides here."""
        raise AssertionError("nobody waits for what a node has decided")

    def settle(self, branches: tuple[otid_t, ...]) -> None:
        """See `Mq_Settler.settle`."""
        self.commit()

    def _check_reached(self) -> None:
        if self.is_silent:
            raise system.TRANSIENT("it cannot be reached")

    def _become(self, state: str) -> None:
        if self.state != state:
            self.state = state
            self.note(("part", self.name, state))


# --- What is known of a history ------------------------------------------------------------------


class Begun(NamedTuple):
    """A transaction, its participants, and those of them that it commits."""

    gtrid: bytes
    names: tuple[str, ...]
    version: int = 0


@dataclass
class Story:
    """What the notes of a trace say: who is in which state, and who was told what."""

    begun: dict[bytes, Begun] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)
    recoveries: dict[str, str] = field(default_factory=dict)
    told: dict[bytes, str] = field(default_factory=dict)
    hands: set[str] = field(default_factory=set)

    @classmethod
    def after(cls, events: Iterable[Any]) -> Story:
        """What holds after these."""
        story = cls()
        for kind, *facts in events:
            getattr(story, f"_{kind}")(*facts)
        return story

    def _begun(self, gtrid: bytes, names: tuple[str, ...], version: int) -> None:
        self.begun[gtrid] = Begun(gtrid, names, version)

    def _part(self, name: str, state: str) -> None:
        self.states[name] = state

    def _asks(self, name: str, recovery: str) -> None:
        self.recoveries[name] = recovery

    def _told(self, gtrid: bytes, answer: str) -> None:
        self.told[gtrid] = answer

    def _hand(self, name: str) -> None:
        self.hands.add(name)


# --- One life of a coordinator -------------------------------------------------------------------


class Life:
    """A coordinator from its start on, its participants, and a client."""

    def __init__(self, disk: RecordingDisk, note: Note | None = None) -> None:
        self.note: Note = note or disk.note
        self.tasks = StepTasks()
        self.orb = LocalOrb()
        chance = random.Random(len(disk.trace.initial) + sum(map(len, disk.image().values())))
        self.log = DecisionLog(
            disk, chance.randbytes, segment_blocks=SEGMENT_BLOCKS, log_bytes_max=LOG_BYTES_MAX
        )
        self.service = Service(self.orb, self.log, self.tasks, chance.randbytes, SETTINGS)
        interfaces.publish(self.service)
        coordination.publish(self.service)
        self.parts: dict[str, Part] = {}
        self._numbers: list[bytes] = []
        where = f"@{HERE}"
        self.client = self.orb.proxy(f"PYRO:{coordination.COORDINATION}{where}", Mq_Coordinator)
        self._factory = self.orb.proxy(f"PYRO:{interfaces.FACTORY}{where}", TransactionFactory)

    def part(self, name: str, state: str = WORKING, **traits: Any) -> Part:
        """A participant that can be called."""
        part = Part(name, self.note, state, **traits)
        self.orb.publish(part, Resource, f"part/{name}")
        self.orb.publish(part, Mq_Settler, f"settler/{name}")
        self.parts[name] = part
        return part

    def resource(self, name: str) -> Resource:
        """The participant as others call it."""
        return self.orb.member(f"part/{name}", Resource)

    # --- A client's doings

    def draw(self) -> bytes:
        """A name that was leased."""
        if not self._numbers:
            lease = self.client.lease(0, 0)
            numbers = range(lease.first, lease.first + 100)
            self._numbers = [issue(lease.prefix, lease.secret, number) for number in numbers]
        return self._numbers.pop(0)

    def begin(self, gtrid: bytes, *names: str, version: int = 0) -> bytes:
        """The transaction is known to the checker."""
        self.note(("begun", gtrid, names, version))
        return gtrid

    def begin_standard(self, *names: str) -> bytes:
        """A transaction of the factory, in which these take part."""
        control = self._factory.create(0)
        coordinator = control.get_coordinator()
        gtrid, _ = split_otid(coordinator.get_txcontext().current.otid)
        self.begin(gtrid, *names)
        for name in names:
            self.join(coordinator, name)
        return gtrid

    def join(self, coordinator: Coordinator, name: str) -> None:
        """The participant registers itself."""
        part = self.parts.get(name) or self.part(name)
        part.recovery = self.orb.reference_of(coordinator.register_resource(self.resource(name)))
        self.note(("asks", name, part.recovery))

    def coordinator(self, gtrid: bytes) -> Coordinator:
        """The transaction as its participants see it."""
        return self.orb.member(member_name("coordinator", gtrid), Coordinator)

    def push(self, gtrid: bytes, name: str, **traits: Any) -> mqParticipant:
        """A participant prepares by itself; what the client hands to the coordinator."""
        part = self.part(name, **traits)
        part.recovery = f"PYRO:{member_name(RECOVERY, gtrid, name)}@{HERE}"
        self.note(("asks", name, part.recovery))
        part.prepare()
        settler = self.orb.member(f"settler/{name}", Mq_Settler)
        return mqParticipant(name, self.resource(name), settler)

    def decide(self, gtrid: bytes, *participants: mqParticipant) -> str:
        """The fast way to end it."""
        return self.hear(
            gtrid, lambda: self.client.decide(otid_of(gtrid), tuple(participants)).status
        )

    def commit(self, gtrid: bytes) -> str:
        """The standard way to end it."""
        terminator = self.orb.member(member_name("terminator", gtrid), Terminator)

        def end() -> Status:
            terminator.commit(True)
            return Status.COMMITTED

        return self.hear(gtrid, end)

    def give_up(self, gtrid: bytes) -> str:
        """It is rolled back."""
        return self.hear(gtrid, lambda: self.client.giveUp(otid_of(gtrid)).status)

    def begin_under_key(self, version: int) -> bytes:
        """A transaction with a key."""
        session = self.client.lease(0, 0).session
        key = mqTransactionKey(APPLICATION, version)
        begun = self.client.beginOrJoin(session, key, 0)
        return self.begin(split_otid(begun.otid)[0], version=version)

    def hear(self, gtrid: bytes, ask: Callable[[], Status]) -> str:
        """What the client is told."""
        try:
            answer = ask().name.lower().replace("_", " ")
        except system.TRANSACTION_ROLLEDBACK:
            answer = ROLLED_BACK
        except (HeuristicMixed, HeuristicHazard):
            answer = "heuristic"
        except system.INVALID_TRANSACTION:
            answer = "unknown"
        self.note(("told", gtrid, answer))
        return answer

    # --- Coming to rest

    def start(self) -> None:
        """What was decided is being carried out."""
        self.service.start()

    def settle(self, seconds: float = 60.0) -> None:
        """Everybody in doubt asks, and what was decided is carried out."""
        for part in self.parts.values():
            if part.state == PREPARED:
                self._ask(part)
        assert self.tasks.go_on(self._is_at_rest, seconds), "it does not come to rest"

    def _ask(self, part: Part) -> None:
        recovery = self.orb.proxy(part.recovery, RecoveryCoordinator)
        status = recovery.replay_completion(None)
        if status in (Status.COMMITTED, Status.COMMITTING):
            part.commit()
        elif status in (Status.ROLLED_BACK, Status.ROLLING_BACK):
            part.rollback()
        else:
            raise AssertionError(f"{part.name} is told {status.name}, and nobody is at work")

    def _is_at_rest(self) -> bool:
        return not self.log.ledger.decisions and not self.service.transactions.every()

    def outcome(self, gtrid: bytes) -> str:
        """What a client that asks later is told."""
        return self.client.getOutcome(otid_of(gtrid)).status.name.lower().replace("_", " ")


def silent(event: tuple[Any, ...]) -> None:
    """Notes nothing: for lives after the crash that is judged."""


def restarted(disk: RecordingDisk, story: Story, note: Note | None = None) -> Life:
    """A new life on the disk, with everybody as the story has them."""
    life = Life(disk, note or silent)
    for begun in story.begun.values():
        for name in begun.names:
            part = life.part(name, story.states.get(name, WORKING))
            part.recovery = story.recoveries.get(name, "")
    life.start()
    return life


def judge(disk: RecordingDisk, events: Iterable[Any]) -> None:
    """After a restart, all that was promised holds."""
    story = Story.after(events)
    life = restarted(disk, story)
    life.settle()
    for begun in story.begun.values():
        judge_one(life, story, begun)


def judge_one(life: Life, story: Story, begun: Begun) -> None:
    """One transaction has ended as a whole, and as somebody was told."""
    told, later = story.told.get(begun.gtrid, ""), life.outcome(begun.gtrid)
    names = [name for name in begun.names if name not in story.hands]
    states = {life.parts[name].state for name in names}
    where = f"{begun}: told {told!r}, later {later!r}, ended {states}"
    assert not states >= {COMMITTED, ROLLED_BACK}, f"half of it happened: {where}"
    assert PREPARED not in states, f"somebody is in doubt: {where}"
    assert told != COMMITTED or ROLLED_BACK not in states, where
    assert told != ROLLED_BACK or COMMITTED not in states, where
    assert {told, later} != {COMMITTED, ROLLED_BACK}, f"told both: {where}"
    assert later != ROLLED_BACK or COMMITTED not in states, where
    assert later != COMMITTED or ROLLED_BACK not in states, where
    if begun.version and told == COMMITTED:
        assert life.client.getVersion(APPLICATION) >= begun.version, where
