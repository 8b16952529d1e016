"""A coordinator in this process, for tests: no network, no real disk, no real time."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import NoReturn
from unittest import mock

from coordinator import coordination, interfaces
from coordinator.decision_log import DecisionLog
from coordinator.live import Settings
from coordinator.service import Service
from coordinator.tasks import Promise, ThreadPromise
from idl import system
from idl.call import Address, Principal, Reference
from idl.coordination import Mq_TransactionAdmin
from idl.cos import (
    Control,
    Coordinator,
    RecoveryCoordinator,
    Resource,
    Terminator,
    TransactionFactory,
    Vote,
)
from idl.local import HERE, LocalOrb
from idl.otids import RECOVERY, member_name, split_otid
from tests.crash.recording_disk import RecordingDisk

ADDRESS: Address = HERE
LOST_ANSWER = system.COMM_FAILURE("cut", system.Completion.MAYBE)


class ManualTasks:
    """`Tasks` that begin when the test says so, at the time that it says. See `Tasks`."""

    def __init__(self, time: float = 0.0) -> None:
        self.time = time
        self._order = itertools.count()
        self._later: list[tuple[float, int, Callable[[], object]]] = []

    def now(self) -> float:
        return self.time

    def spawn(self, work: Callable[..., object], *arguments: object) -> None:
        work(*arguments)

    def after(self, delay_s: float, work: Callable[..., object], *arguments: object) -> None:
        due = self.time + delay_s
        self._later.append((due, next(self._order), lambda: work(*arguments)))

    def promise(self) -> Promise:
        return ThreadPromise()

    def pass_time(self, seconds: float) -> None:
        """Everything that is due by then is done."""
        end = self.time + seconds
        while self._later and min(self._later)[0] <= end:
            self._later.sort(key=lambda entry: entry[:2])
            self.time, _, work = self._later.pop(0)
            work()
        self.time = end


class EmbeddedCoordinator:
    """The coordinator, its orb and its time. `restart` begins its next incarnation."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.disk = RecordingDisk()
        self.settings = settings or Settings(session_s=30.0)
        self._numbers = itertools.count(1)
        self.tasks = ManualTasks()
        # Participants are other programs: they are there before and after a restart.
        self.participants: dict[str, Participant] = {}
        self._boot()

    @property
    def factory(self) -> TransactionFactory:
        """Where transactions are begun."""
        return self.orb.member(interfaces.FACTORY, TransactionFactory)

    def begin(self, timeout_s: int = 0) -> Begun:
        """A new top-level transaction."""
        return Begun(self, self.factory.create(timeout_s))

    def restart(self, is_restored: bool = False) -> None:
        """As after a crash: what was not on disk is gone, and time goes on.

        `is_restored`: it is told that its disk was put back from a copy.
        """
        self.disk = RecordingDisk(self.disk.image())
        self.tasks = ManualTasks(self.tasks.time)
        self._boot(is_restored)

    def _boot(self, is_restored: bool = False) -> None:
        self.orb = LocalOrb()
        for name, participant in self.participants.items():
            self.orb.publish(participant, Resource, name)
        log = DecisionLog(self.disk, self._randomness, segment_blocks=8, is_restored=is_restored)
        self.service = Service(self.orb, log, self.tasks, self._randomness, self.settings)
        self.service.start()
        interfaces.publish(self.service)
        coordination.publish(self.service)

    def _randomness(self, size: int) -> bytes:
        return next(self._numbers).to_bytes(size)


class Begun:
    """A transaction that has begun, and its objects."""

    def __init__(self, coordinator: EmbeddedCoordinator, control: Control) -> None:
        self._embedded = coordinator
        self.control = control
        self.terminator: Terminator = control.get_terminator()
        self.coordinator: Coordinator = control.get_coordinator()
        self.otid = self.coordinator.get_txcontext().current.otid
        self.gtrid = split_otid(self.otid)[0]

    def join(self, participant: Participant) -> RecoveryCoordinator:
        """The participant has registered; whom it asks for the outcome."""
        return self.coordinator.register_resource(published(self._embedded, participant))

    def nest(self) -> Begun:
        """A new subtransaction."""
        return Begun(self._embedded, self.coordinator.create_subtransaction())


class Participant:
    """A resource that remembers what it was told, and can be away or vote against.

    `during` holds what happens while it is told something, by the word for it.
    """

    def __init__(self, vote: Vote = Vote.COMMIT) -> None:
        self.told: list[str] = []
        self.vote = vote
        self.is_away = False
        self.during: dict[str, Callable[[], object]] = {}

    def _hear(self, word: str) -> None:
        self.told.append(word)
        self.during.get(word, lambda: None)()

    def prepare(self) -> Vote:
        self._hear("prepare")
        return self.vote

    def commit(self) -> None:
        if self.is_away:
            raise system.TRANSIENT("away")
        self._hear("commit")

    def rollback(self) -> None:
        self._hear("rollback")

    def commit_one_phase(self) -> None:
        self._hear("commit_one_phase")

    def forget(self) -> None:
        self._hear("forget")


def published(coordinator: EmbeddedCoordinator, participant: Participant) -> Resource:
    """The object that stands for the participant, also after a restart of the coordinator."""
    resource = coordinator.orb.publish(participant, Resource)
    reference = coordinator.orb.reference_of(resource)
    coordinator.participants[Reference.parse(reference).name] = participant
    return resource


def joined(begun: Begun, *votes: Vote) -> list[Participant]:
    """Participants of the transaction, one for each vote."""
    participants = [Participant(vote) for vote in votes]
    for participant in participants:
        begun.join(participant)
    return participants


def words(participants: list[Participant]) -> list[str]:
    """What each was told."""
    return [" ".join(participant.told) for participant in participants]


def admin_of(coordinator: EmbeddedCoordinator) -> Mq_TransactionAdmin:
    """What an operator sees of transactions."""
    return coordinator.orb.member(coordination.ADMIN, Mq_TransactionAdmin)


def recovery_of(coordinator: EmbeddedCoordinator, gtrid: bytes, name: str) -> RecoveryCoordinator:
    """Whom the participant of this name asks, also after a restart."""
    return coordinator.orb.member(member_name(RECOVERY, gtrid, name), RecoveryCoordinator)


def raising(trouble: Exception) -> Callable[[], NoReturn]:
    """What raises this when it is called."""

    def fail() -> NoReturn:
        raise trouble

    return fail


@contextlib.contextmanager
def calling_as(name: str) -> Iterator[None]:
    """Calls made inside are those of another principal."""
    with mock.patch("idl.local.LOCAL", Principal(name)):
        yield
