"""One thread for all peers that were let in: it reads what they ask, and answers what is prompt.

    a whole request has arrived       it is answered here, in turn with the others
    but it steps aside                a helper, which is a thread of its own, carries it out
    only a part has arrived           a helper waits for the rest, and answers it
    the answer finds no room          a helper sends the rest

So no peer can hold up another, and of the calls that wait for the disk all that are ready share one
write. Which of these it is says the server, that does the work; the pump sees to it that each peer
is with exactly one of them: listened to, at its turn, or with a helper. A call that itself waits
for an answer from elsewhere goes on when that has come. See `idl.turns`.
"""

from __future__ import annotations

import contextlib
import math
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Generic, Protocol, TypeVar

from greenlet import greenlet

from idl.turns import Turns

HELPER_IDLE_S = 0.5
# So many are attended to before it is looked who else has sent something.
READY_MAX = 64
# For this part of the time that the last write took, those who shared it are waited for.
PATIENCE = 0.5
PATIENCE_S_MAX = 0.005
SWEEP_S_MAX = 5.0

Work = Callable[[], None]


class Peer(Protocol):
    """As much of a connection as the pump needs. The fields are the pump's own."""

    descriptor: int
    is_listened_to: bool
    quiet_since: float


P = TypeVar("P", bound=Peer)


class Pump(Generic[P]):
    """Listens to peers until it is closed. `attend` serves one that has sent something."""

    def __init__(
        self, attend: Callable[[P], object], dismiss: Callable[[P], None], idle_s: float
    ) -> None:
        self._attend = attend
        self._dismiss = dismiss
        self._idle_s = idle_s
        self._epoll = select.epoll()
        # Rung to have the thread look up; what arrives there is never read.
        self._bell, self._clapper = socket.socketpair()
        self._epoll.register(self._bell, select.EPOLLIN)
        self._peers: dict[int, P] = {}
        self._turns = Turns(self._watch, self._listen_on)
        # Calls that wait for something from elsewhere, by descriptor, and how long they may.
        self._awaiting: dict[int, tuple[greenlet, float]] = {}
        # Nobody's time is over before this.
        self._late_at = math.inf
        self._helpers = Helpers()
        # How many went on together last time, and for how long they are waited for.
        self._expected = 0
        self._patience_s = 0.0
        self._sweep_s = min(SWEEP_S_MAX, idle_s / 4)
        self._sweep_at = time.monotonic() + self._sweep_s
        self._is_closing = False
        self._thread = threading.Thread(target=self._turns.serve, name="orb-pump", daemon=True)
        self._thread.start()

    def listen_to(self, peer: P) -> None:
        """The peer is attended to when it sends something. From any thread."""
        peer.quiet_since = time.monotonic()
        peer.is_listened_to = True
        self._peers[peer.descriptor] = peer
        self._epoll.register(peer.descriptor, select.EPOLLIN)

    def turn_from(self, peer: P) -> None:
        """Nobody listens to the peer, until somebody says so. Before its socket is closed."""
        if peer.is_listened_to:
            peer.is_listened_to = False
            self._peers.pop(peer.descriptor, None)
            with contextlib.suppress(OSError):
                self._epoll.unregister(peer.descriptor)

    def aside(self, work: Work) -> None:
        """A helper does the work. Raises `RuntimeError` where no thread can be had for it."""
        self._helpers.do(work)

    def close(self) -> None:
        """The thread has ended. Nobody is listened to any more by then."""
        if self._is_closing:
            return
        self._is_closing = True
        self._clapper.send(b"!")
        self._thread.join()
        self._epoll.close()
        self._bell.close()
        self._clapper.close()

    def _listen_on(self) -> None:
        """Round after round, until the pump is closed. This is the hub of the turns."""
        turns = self._turns
        while not self._is_closing:
            pause_s = self._sweep_s
            if turns.ready or turns.gave_way:
                pause_s = 0.0
            elif self._late_at < math.inf:
                pause_s = max(0.0, min(pause_s, self._late_at - time.monotonic()))
            self._listen(pause_s)
            now = time.monotonic()
            if now >= self._late_at:
                self._give_up(now)
            if turns.gave_way:
                self._go_on_together(now)
            if turns.ready:
                turns.run_ready()
            if now >= self._sweep_at:
                self._sweep_at = now + self._sweep_s
                self._sweep(now - self._idle_s)
        self._give_up(math.inf)
        while turns.ready:
            turns.run_ready()

    def _go_on_together(self, begun: float) -> None:
        """Those who gave way have gone on: the first writes to the disk for all of them."""
        turns = self._turns
        if turns.waiting > 1 or self._expected > 1:
            self._gather(begun + self._patience_s)
            begun = time.monotonic()
        self._expected = turns.waiting
        turns.go_on()
        self._patience_s = min((time.monotonic() - begun) * PATIENCE, PATIENCE_S_MAX)

    def _watch(self, waiting: greenlet, descriptor: int, events: int, deadline: float) -> None:
        # Told of once, and not again until the next wait; mostly it is known from the last one.
        try:
            self._epoll.modify(descriptor, events | select.EPOLLONESHOT)
        except FileNotFoundError:
            self._epoll.register(descriptor, events | select.EPOLLONESHOT)
        self._awaiting[descriptor] = (waiting, deadline)
        self._late_at = min(self._late_at, deadline)

    def _go_on(self, descriptor: int, is_ready: bool) -> None:
        waiting, _ = self._awaiting.pop(descriptor)
        waiting.switch(is_ready)

    def _give_up(self, now: float) -> None:
        """Those whose time is over go on without what they waited for."""
        late = [number for number, (_, deadline) in self._awaiting.items() if deadline <= now]
        for descriptor in late:
            self._go_on(descriptor, is_ready=False)
        self._late_at = min([deadline for _, deadline in self._awaiting.values()], default=math.inf)

    def _gather(self, deadline: float) -> None:
        """Those who shared the last write to the disk have come again, unless they take too long.

        Without that, who comes first would go alone, and the others would follow together.
        """
        self._listen(0)
        while self._turns.waiting < self._expected:
            left_s = deadline - time.monotonic()
            # An epoll waits for whole milliseconds only; it can itself be waited for.
            if left_s <= 0 or not select.select([self._epoll], [], [], left_s)[0]:
                return
            self._listen(0)

    def _listen(self, timeout_s: float) -> None:
        turns = self._turns
        ready = self._epoll.poll(timeout_s, READY_MAX)
        # Who comes alone, while nobody waits for the disk or is waited for, gives way to nobody.
        is_alone = len(ready) == 1 and self._expected <= 1 and not turns.gave_way
        for descriptor, _ in ready:
            peer = self._peers.get(descriptor)
            if peer is None:
                if descriptor in self._awaiting:
                    self._go_on(descriptor, is_ready=True)
            elif is_alone:
                turns.run_alone(self._attend, peer)
            else:
                turns.run(self._attend, peer)

    def _sweep(self, since: float) -> None:
        for peer in list(self._peers.values()):
            if peer.quiet_since < since:
                self._dismiss(peer)


class Helpers:
    """Threads for what takes long: as many as are needed at once, each used again and again."""

    def __init__(self, idle_s: float = HELPER_IDLE_S) -> None:
        self._idle_s = idle_s
        # Each has a way to be told of work; who became idle last is told first.
        self._idle: deque[SimpleQueue[Work]] = deque()

    @property
    def idle(self) -> int:
        """How many have nothing to do."""
        return len(self._idle)

    def do(self, work: Work) -> None:
        """Somebody does it. Raises `RuntimeError` where no thread can be had."""
        try:
            told = self._idle.pop()
        except IndexError:
            threading.Thread(target=self._help, args=(work,), name="orb-aside", daemon=True).start()
        else:
            told.put(work)

    def _help(self, work: Work) -> None:
        told: SimpleQueue[Work] = SimpleQueue()
        while True:
            work()
            self._idle.append(told)
            try:
                work = told.get(timeout=self._idle_s)
            except Empty:
                try:
                    self._idle.remove(told)
                except ValueError:
                    # Somebody has chosen it just now.
                    work = told.get()
                else:
                    return
