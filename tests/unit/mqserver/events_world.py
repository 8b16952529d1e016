"""Event channels over a storage in memory, with a time and a work of the test's own.

No thread runs and nothing sleeps: work that the channels would do beside their callers is done when
the test lets time pass. Calls go through the local orb, as whoever the test says.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

from idl import system
from idl.call import Call, Principal
from idl.cos import Disconnected, EventChannel, ProxyPullSupplier, PushConsumer
from idl.local import LocalOrb
from mqserver.arrivals import WatchedStorage
from mqserver.errors import StorageFailed
from mqserver.events.settings import EventSettings
from mqserver.interfaces.events import Channels
from mqserver.queues import key_text
from mqserver.storage.contract import EVERYTHING, Message, NewMessage, QueueSettings, Selection
from mqserver.storage.memory import MemoryStorage

Work = Callable[[], object]


class ManualTime:
    """A clock, and all work that is due by it; see `Workers`."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._order = itertools.count()
        self._jobs: list[tuple[float, int, str, Work]] = []
        self.done: list[str] = []
        self.closed: set[str] = set()

    def clock(self) -> float:
        return self.now

    def make_workers(self, name: str, threads_max: int) -> ManualWorkers:
        return ManualWorkers(self, name)

    def add(self, delay_s: float, name: str, work: Work) -> None:
        if name not in self.closed:
            self._jobs.append((self.now + delay_s, next(self._order), name, work))

    def pass_time(self, seconds: float) -> None:
        """Everything that is due by then is done, in its order."""
        end = self.now + seconds
        while self._jobs and min(self._jobs)[0] <= end:
            due = min(self._jobs)
            self._jobs.remove(due)
            self.now = max(self.now, due[0])
            self.done.append(due[2])
            due[3]()
        self.now = max(self.now, end)

    def settle(self) -> None:
        """Everything that is due now is done."""
        self.pass_time(0.0)

    def close(self, name: str) -> None:
        self.closed.add(name)
        self._jobs = [job for job in self._jobs if job[2] != name or job[0] <= self.now]
        self.settle()


class ManualWorkers:
    """See `Workers`."""

    def __init__(self, time: ManualTime, name: str) -> None:
        self._time = time
        self._name = name

    def submit(self, work: Work) -> None:
        self._time.add(0.0, self._name, work)

    def after(self, delay_s: float, work: Work) -> None:
        self._time.add(delay_s, self._name, work)

    def close(self, timeout_s: float) -> None:
        self._time.close(self._name)


class InterruptedStorage(MemoryStorage):
    """A storage in memory during whose `browse` the test can let something happen."""

    before: Work | None = None
    after: Work | None = None
    is_failing = False
    pages: list[int]

    def browse(self, queue: str, selection: Selection, after: int, limit: int) -> list[Message]:
        self.pages.append(limit)
        if self.is_failing:
            raise StorageFailed()
        _run_once(self, "before")
        found = super().browse(queue, selection, after, limit)
        _run_once(self, "after")
        return found


def _run_once(storage: InterruptedStorage, moment: str) -> None:
    work: Work | None = getattr(storage, moment)
    setattr(storage, moment, None)
    if work is not None:
        work()


class Consumer:
    """A push consumer that remembers what it heard, and does what the test says."""

    def __init__(self) -> None:
        self.heard: list[object] = []
        self.is_told = 0
        self.answer: Callable[[], None] = lambda: None

    def push(self, data: object) -> None:
        self.answer()
        self.heard.append(data)

    def disconnect_push_consumer(self) -> None:
        self.is_told += 1


class EventWorld:
    """A node's channels, its queues, its callers and its time."""

    def __init__(self, settings: EventSettings | None = None, **more: Any) -> None:
        self.time = ManualTime()
        self.orb = LocalOrb()
        self.memory = InterruptedStorage(self.time.clock)
        self.memory.pages = []
        self.storage = WatchedStorage(self.memory)
        self.waits: list[float | None] = []
        self.while_waiting: Work | None = None
        self.channels = Channels(
            self.orb,
            self.storage,
            settings or EventSettings(),
            self.time.clock,
            make_workers=self.time.make_workers,
            make_condition=self._make_condition,
            **more,
        )
        self.channels.publish()
        self.storage.listen(self.channels.arrived)
        self._branches = itertools.count()
        self.create("q")

    # --- Queues

    def create(self, queue: str) -> None:
        self.storage.create_queue(queue, QueueSettings())

    def put(self, *groups: int, queue: str = "q") -> list[str]:
        """One message for each group, in one transaction; their keys."""
        branch = self.store(*groups, queue=queue)
        self.storage.commit_one_phase(branch)
        return self.last_keys

    def store(self, *groups: int, queue: str = "q") -> bytes:
        """The same, but not yet committed."""
        branch = b"branch%d" % next(self._branches)
        messages = [NewMessage(b"x", 0, group=group) for group in groups or (0,)]
        self.last_keys = list(map(key_text, self.storage.store(branch, queue, messages)))
        return branch

    def take(self, queue: str = "q") -> bytes:
        """The next message is taken by somebody."""
        branch = b"branch%d" % next(self._branches)
        self.storage.take(branch, queue, EVERYTHING, 1)
        return branch

    # --- Channels

    def channel(self, name: str = "c") -> EventChannel:
        return self.orb.member(f"channel/{name}", EventChannel)

    def push_to(self, consumer: Consumer, channel: str = "c") -> Any:
        """The consumer is connected; the object to which it is."""
        published = self.orb.publish(consumer, PushConsumer)
        supplier = self.channel(channel).for_consumers().obtain_push_supplier()
        supplier.connect_push_consumer(published)
        return supplier

    def puller(self, channel: str = "c") -> ProxyPullSupplier:
        """A pull consumer is connected; where it pulls."""
        supplier = self.channel(channel).for_consumers().obtain_pull_supplier()
        supplier.connect_pull_consumer(None)
        return supplier

    def listening(self, group: int = 0, channel: str = "c", queue: str = "q") -> ProxyPullSupplier:
        """A pull consumer that hears of the queue."""
        self.channels.start_notify(channel, queue, group)
        return self.puller(channel)

    @contextlib.contextmanager
    def called_by(self, principal: str) -> Iterator[None]:
        """Calls made inside come from this principal."""
        objects: Any = self.orb._objects
        serve = objects.serve

        def served(call: Call, *more: Any) -> Any:
            return serve(call._replace(principal=Principal(principal)), *more)

        objects.serve = served
        try:
            yield
        finally:
            objects.serve = serve

    def _make_condition(self, lock: threading.Lock) -> threading.Condition:
        return ScriptedCondition(self, lock)


class ScriptedCondition(threading.Condition):
    """Whoever waits lets the test do something, or the whole time passes."""

    def __init__(self, world: EventWorld, lock: threading.Lock) -> None:
        super().__init__(lock)
        self._world = world
        self._own_lock = lock

    def wait(self, timeout: float | None = None) -> bool:
        world = self._world
        world.waits.append(timeout)
        work, world.while_waiting = world.while_waiting, None
        self._own_lock.release()
        try:
            if work is None:
                world.time.now += timeout or 0.0
            else:
                work()
        finally:
            self._own_lock.acquire()
        return work is not None


def drain(supplier: ProxyPullSupplier) -> list[Any]:
    """All that can be pulled without waiting."""
    heard: list[Any] = []
    while True:
        event, has_event = supplier.try_pull()
        if not has_event:
            return heard
        heard.append(event)


def keys(events: list[Any]) -> list[str]:
    return [key for _, key, _ in events]


def is_gone(supplier: ProxyPullSupplier) -> bool:
    """Whether the object is there no more."""
    try:
        supplier.try_pull()
    except (system.OBJECT_NOT_EXIST, Disconnected):
        return True
    return False
