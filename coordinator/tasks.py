"""Work that goes on beside the caller's: the one place where the coordinator starts threads.

`Tasks` says what the coordinator asks for; `ThreadTasks` gives it threads and real time, and the
simulation gives it a time of its own. What holds: work that was spawned begins, unless everything
is being closed; what it raises and nobody caught is handed to `on_error`, never lost.
"""

from __future__ import annotations

import _thread
import heapq
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Protocol

THREADS_MAX = 256


class Promise(Protocol):
    """A value that can be waited for, and is given once."""

    def keep(self, value: Any) -> None:
        """The value is this, unless it was given before."""

    def wait(self, timeout_s: float | None = None) -> Any:
        """The value; raises `TimeoutError`."""

    def is_kept(self) -> bool:
        """Whether the value was given."""


class Tasks(Protocol):
    """Runs work beside the caller's, now or later."""

    def now(self) -> float:
        """The time in seconds, which only goes forward; no date can be had from it."""

    def spawn(self, work: Callable[..., object], *arguments: object) -> None:
        """The work goes on by itself."""

    def after(self, delay_s: float, work: Callable[..., object], *arguments: object) -> None:
        """The work begins when the time has passed."""

    def promise(self) -> Promise:
        """A value that is not known yet."""


class ThreadPromise:
    """A `Promise` between threads: a lock that is free once the value is there."""

    __slots__ = ("_first", "_is_kept", "_lock", "_value")

    def __init__(self) -> None:
        self._lock = _thread.allocate_lock()
        self._lock.acquire()
        self._first = _thread.allocate_lock()
        self._is_kept = False
        self._value: Any = None

    def keep(self, value: Any) -> None:
        """See `Promise.keep`."""
        # Of several threads at once only one gets in, and it stays in.
        if self._first.acquire(blocking=False):
            self._value = value
            self._is_kept = True
            self._lock.release()

    def wait(self, timeout_s: float | None = None) -> Any:
        """See `Promise.wait`."""
        if not self._is_kept:
            if not self._lock.acquire(timeout=-1 if timeout_s is None else timeout_s):
                raise TimeoutError
            self._lock.release()
        return self._value

    def is_kept(self) -> bool:
        """See `Promise.is_kept`."""
        return self._is_kept


Job = tuple[Callable[..., object], tuple[object, ...]]


class ThreadTasks:
    """`Tasks` on threads that are used again; one more keeps the time."""

    def __init__(
        self,
        clock: Callable[[], float],
        on_error: Callable[[BaseException], object],
        threads_max: int = THREADS_MAX,
    ) -> None:
        self.now = clock
        self._on_error = on_error
        self._threads_max = threads_max
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        # Threads that will take the next job, less the jobs that wait for one; each is counted with
        # the lock held, or a job could be left to a thread that is busy with another.
        self._free = 0
        self._threads: list[threading.Thread] = []
        self._monitor = threading.Condition()
        self._later: list[tuple[float, int, Job]] = []
        self._order = 0
        self._is_closed = False
        self._timer = threading.Thread(target=self._keep_time, name="oncemq-timer", daemon=True)
        self._timer.start()

    def promise(self) -> ThreadPromise:
        """See `Tasks.promise`."""
        return ThreadPromise()

    def spawn(self, work: Callable[..., object], *arguments: object) -> None:
        """See `Tasks.spawn`."""
        with self._monitor:
            self._jobs.put((work, arguments))
            if self._free > 0 or len(self._threads) >= self._threads_max or self._is_closed:
                self._free -= 1
                return
            # It is born for this job, and counts as free once that is done.
            name = f"oncemq-task-{len(self._threads)}"
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def after(self, delay_s: float, work: Callable[..., object], *arguments: object) -> None:
        """See `Tasks.after`."""
        with self._monitor:
            self._order += 1
            job = (work, arguments)
            heapq.heappush(self._later, (self.now() + delay_s, self._order, job))
            self._monitor.notify()

    def close(self, timeout_s: float) -> None:
        """Nothing new begins; waits for what is under way, as long as that."""
        deadline = self.now() + timeout_s
        with self._monitor:
            self._is_closed = True
            self._later.clear()
            self._monitor.notify()
        for _ in self._threads:
            self._jobs.put(None)
        for thread in (self._timer, *self._threads):
            if thread is not threading.current_thread():
                thread.join(max(deadline - self.now(), 0.0))

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            work, arguments = job
            try:
                work(*arguments)
            except BaseException as failed:  # noqa: BLE001
                # Nobody waits for this thread: whoever runs the program must hear of it.
                self._on_error(failed)
            with self._monitor:
                self._free += 1

    def _keep_time(self) -> None:
        while True:
            with self._monitor:
                if self._is_closed:
                    return
                left = self._later[0][0] - self.now() if self._later else None
                if left is None or left > 0:
                    self._monitor.wait(left)
                    continue
                _, _, (work, arguments) = heapq.heappop(self._later)
            self.spawn(work, *arguments)
