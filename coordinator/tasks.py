"""Work that goes on beside the caller's: the one place where the coordinator starts threads.

`Tasks` says what the coordinator asks for; `ThreadTasks` gives it threads and real time, and the
simulation gives it a time of its own. What holds: work that was spawned begins, unless everything
is being closed; what it raises and nobody caught is handed to `on_error`, never lost.
"""

from __future__ import annotations

import _thread
import heapq
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

THREADS_MAX = 256
THREADS_AT_ONCE = 16
PATIENCE_S = 0.002


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
    """`Tasks` on threads that are used again; one more keeps the time.

    Who has reported what it did is free a moment later, and nobody can tell how long that takes. So
    beyond the first few threads, work is left waiting for `patience_s` before one more is started
    for it: their number follows what is held up, not how often anything is spawned.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        on_error: Callable[[BaseException], object],
        threads_max: int = THREADS_MAX,
        threads_at_once: int = THREADS_AT_ONCE,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.now = clock
        self._on_error = on_error
        self._threads_max = threads_max
        self._threads_at_once = min(threads_at_once, threads_max)
        self._patience_s = patience_s
        self._lock = threading.RLock()
        # What waits for a thread, and since when; the oldest first.
        self._jobs: deque[tuple[float, Job]] = deque()
        # Threads that wait for work and have not been called; exact while the lock is held.
        self._idle = 0
        # Threads that were started or called, and have not looked for their work yet.
        self._coming = 0
        self._called = threading.Condition(self._lock)
        self._threads: list[threading.Thread] = []
        self._time = threading.Condition(self._lock)
        self._later: list[tuple[float, int, Job]] = []
        self._grow_at: float | None = None
        self._order = 0
        self._is_closed = False
        self._timer = threading.Thread(target=self._keep_time, name="oncemq-timer", daemon=True)
        self._timer.start()

    def promise(self) -> ThreadPromise:
        """See `Tasks.promise`."""
        return ThreadPromise()

    def spawn(self, work: Callable[..., object], *arguments: object) -> None:
        """See `Tasks.spawn`."""
        with self._lock:
            if self._is_closed:
                return
            now = self.now()
            self._jobs.append((now, (work, arguments)))
            if self._idle:
                self._idle -= 1
                self._coming += 1
                self._called.notify()
            elif len(self._threads) < self._threads_at_once:
                self._start_thread()
            elif self._grow_at is None and len(self._threads) < self._threads_max:
                self._grow_at = now + self._patience_s
                self._time.notify()

    def after(self, delay_s: float, work: Callable[..., object], *arguments: object) -> None:
        """See `Tasks.after`."""
        with self._lock:
            self._order += 1
            job = (work, arguments)
            heapq.heappush(self._later, (self.now() + delay_s, self._order, job))
            self._time.notify()

    def close(self, timeout_s: float) -> None:
        """Nothing new begins; waits for what is under way, as long as that."""
        deadline = self.now() + timeout_s
        with self._lock:
            self._is_closed = True
            self._later.clear()
            self._coming += self._idle
            self._idle = 0
            self._called.notify_all()
            self._time.notify()
        for thread in (self._timer, *self._threads):
            if thread is not threading.current_thread():
                thread.join(max(deadline - self.now(), 0.0))

    def _start_thread(self) -> None:
        name = f"oncemq-task-{len(self._threads)}"
        thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._threads.append(thread)
        self._coming += 1
        thread.start()

    def _work(self) -> None:
        came = 1
        while (job := self._next_job(came)) is not None:
            came = 0
            work, arguments = job
            try:
                work(*arguments)
            except BaseException as failed:  # noqa: BLE001
                # Nobody waits for this thread: whoever runs the program must hear of it.
                self._on_error(failed)

    def _next_job(self, came: int) -> Job | None:
        with self._lock:
            self._coming -= came
            while not self._jobs:
                if self._is_closed:
                    return None
                self._idle += 1
                # Whoever calls takes it off again. What it was called for may be gone by then:
                # a thread that has just become free was faster.
                self._called.wait()
                self._coming -= 1
            return self._jobs.popleft()[1]

    def _keep_time(self) -> None:
        while True:
            with self._lock:
                if self._is_closed:
                    return
                due = [self._later[0][0]] if self._later else []
                if self._grow_at is not None:
                    due.append(self._grow_at)
                left = min(due) - self.now() if due else None
                if left is None or left > 0:
                    self._time.wait(left)
                    continue
                if self._grow_at is not None and self._grow_at <= self.now():
                    self._grow()
                    continue
                _, _, (work, arguments) = heapq.heappop(self._later)
            self.spawn(work, *arguments)

    def _grow(self) -> None:
        """As many threads more as there is work that has waited too long."""
        since = self.now() - self._patience_s
        room = self._threads_max - len(self._threads)
        late = sum(asked_at <= since for asked_at, _ in self._jobs)
        for _ in range(min(late - self._coming, room)):
            self._start_thread()
        self._grow_at = None
        if len(self._jobs) > late and len(self._threads) < self._threads_max:
            self._grow_at = self._jobs[late][0] + self._patience_s
