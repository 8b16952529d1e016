"""A client's way to one server: pooled connections, shared by threads, safe across a fork.

The rule of repetition lives here. A call that never left may be made again at will. One that may
have reached the server is made again, with the same request id, only when its operation is
idempotent; otherwise the caller is told COMPLETED_MAYBE and decides. Which transport the
connections use is not known here: a `Connect` makes them.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, Protocol

from idl import system
from idl.dispatch import Answer
from idl.marshal import doubted
from idl.process import here
from idl.turns import step_aside

# So long the answers that nobody waited for are waited for in the end.
CLOSING_S = 2.0
# Makes a tuple as its class would, without a function of Python's in between: for every call.
_new_tuple = tuple.__new__


class Request(NamedTuple):
    """One call on its way: the packed body, the idempotency key, and what travels beside it."""

    body: bytes
    request_id: bytes
    transaction: bytes
    idempotent: bool
    what: str


class Link(Protocol):
    """One connection. It belongs to one call at a time."""

    def exchange(self, request: Request, deadline: float) -> Answer:
        """Sends the request and waits for the answer to it.

        Raises COMM_FAILURE or TIMEOUT with what is known about the call; the link is then closed.
        """

    def send_request(self, request: Request, deadline: float) -> None:
        """The first half of `exchange`."""

    def receive_answer(self, request: Request, deadline: float) -> Answer:
        """The second half of `exchange`."""

    def hear(self, request: Request, deadline: float) -> Answer | None:
        """The same, or None where the answer was foretold and is still to come."""

    def is_usable(self) -> bool:
        """Whether the other side has neither closed the connection nor sent what nobody asked."""

    def close(self) -> None:
        """Lets go of the connection, in this process only."""


# Makes a connection until the deadline; raises a system exception with Completion.NO.
Connect = Callable[[float], Link]


class _Pool:
    """The links of one process: those that are idle, and how many more there may be.

    A link has a place as long as it is open, idle or not. `places` holds those that no link has,
    as None, and links for whoever waits because there is neither; else links are kept in `idle`,
    where the one that was used last is taken first.
    """

    def __init__(self, links_max: int) -> None:
        self.process = here.pid
        self.idle: deque[Link] = deque()
        self.places: SimpleQueue[Link | None] = SimpleQueue()
        for _ in range(links_max):
            self.places.put(None)
        self._lock = threading.Lock()
        self._waiting = 0
        # Requests whose answers nobody waits for, the oldest first; and who is hearing them.
        self.left: deque[tuple[Started, Note]] = deque()
        self.hearing = threading.Lock()

    def give_back(self, link: Link) -> None:
        """The link may be used by others."""
        self.idle.append(link)
        # After that line, as who waits looks for an idle one after counting itself: of the two
        # at least one sees the other.
        if self._waiting:
            with contextlib.suppress(IndexError):
                self.places.put(self.idle.pop())

    def wait(self, timeout_s: float) -> Link | None:
        """A link that was given back, or the place for a new one; raises `Empty`."""
        with contextlib.suppress(Empty):
            return self.places.get_nowait()
        with self._lock:
            self._waiting += 1
        try:
            with contextlib.suppress(IndexError):
                return self.idle.pop()
            return self.places.get(timeout=timeout_s)
        finally:
            with self._lock:
                self._waiting -= 1


class Started(NamedTuple):
    """A request that was sent, and the link on which its answer will come."""

    pool: _Pool
    link: Link
    request: Request
    deadline: float


# What became of a request whose answer nobody waited for; whoever is told so makes no call.
Heard = Answer | system.SystemException
Note = Callable[[Heard], None]


class Endpoint:
    """The connections to one server. Any thread may call; each call has a link to itself.

    Whatever is asked comes after what was left to be answered: those answers are heard first.
    """

    def __init__(self, connect: Connect, clock: Callable[[], float], links_max: int) -> None:
        self._connect = connect
        self._clock = clock
        self._links_max = links_max
        self._pool = _Pool(links_max)
        self._is_closed = False

    def call(self, request: Request, timeout_s: float) -> Answer:
        """Makes the call, over a pooled connection or a new one, within the time."""
        deadline = self._clock() + timeout_s
        pool = self._pool
        if pool.process != here.pid:
            pool = self._own_pool()
        if pool.left:
            self._hear_left(pool, deadline)
        try:
            return self._attempt(pool, request, deadline, timeout_s)
        except system.COMM_FAILURE as lost:
            return self._repeat(pool, request, deadline, lost)

    def start(self, request: Request, timeout_s: float) -> Started | None:
        """Sends the request if a connection is ready; None if none is, and then nothing was sent.

        Whoever started it finishes it: until then the connection is its own.
        """
        deadline = self._clock() + timeout_s
        pool = self._pool
        if pool.process != here.pid:
            pool = self._own_pool()
        if pool.left:
            self._hear_left(pool, deadline)
        link = None if self._is_closed else _usable(pool)
        if link is None:
            return None
        try:
            link.send_request(request, deadline)
        except system.SystemException:
            # Not all of it was handed to the network: nothing was done.
            _let_go(pool, link)
            return None
        started: Started = _new_tuple(Started, (pool, link, request, deadline))
        return started

    def finish(self, started: Started) -> Answer:
        """The answer to what was started; repeated as `call` would, when it was lost."""
        pool, link, request, deadline = started
        try:
            answer = link.receive_answer(request, deadline)
        except system.COMM_FAILURE as lost:
            _let_go(pool, link)
            return self._repeat(pool, request, deadline, lost)
        except BaseException:
            _let_go(pool, link)
            raise
        self._give_back(pool, link)
        return answer

    def hear(self, started: Started) -> Answer | None:
        """The answer to what was started; None where it was foretold: `finish` waits for it."""
        try:
            answer = started.link.hear(started.request, started.deadline)
        except system.COMM_FAILURE as lost:
            _let_go(started.pool, started.link)
            return self._repeat(started.pool, started.request, started.deadline, lost)
        except BaseException:
            _let_go(started.pool, started.link)
            raise
        if answer is not None:
            self._give_back(started.pool, started.link)
        return answer

    def leave(self, started: Started, note: Note) -> None:
        """Nobody waits for the answer. It is heard before the next call, or the end, and noted."""
        started.pool.left.append((started, note))

    def _hear_left(self, pool: _Pool, deadline: float) -> None:
        """What was left has been answered, or its time is over."""
        with pool.hearing:
            while pool.left:
                started, note = pool.left[0]
                try:
                    told: Heard = self.finish(started._replace(deadline=deadline))
                except system.SystemException as failed:
                    told = failed
                finally:
                    # Not before: others are to wait as well.
                    pool.left.popleft()
                note(told)

    def close(self) -> None:
        """Closes the idle connections; one that is in use is closed when its call ends."""
        pool = self._pool
        if pool.left and pool.process == here.pid:
            self._hear_left(pool, self._clock() + CLOSING_S)
        self._is_closed = True
        _drop(pool.idle)
        with contextlib.suppress(Empty):
            while True:
                link = pool.places.get_nowait()
                if link is not None:
                    link.close()

    def _repeat(
        self, pool: _Pool, request: Request, deadline: float, lost: system.COMM_FAILURE
    ) -> Answer:
        if not request.idempotent and lost.completed is not system.Completion.NO:
            raise lost
        try:
            answer = self._attempt(pool, request, deadline, max(deadline - self._clock(), 0.0))
        except system.SystemException as failed:
            if failed.completed is system.Completion.NO:
                # The second attempt did nothing, but what the first one did is still not known.
                raise type(failed)(failed.reason, lost.completed) from lost
            raise
        if answer.is_exception and lost.completed is not system.Completion.NO:
            # The same, told by the server.
            return Answer(doubted(answer.plain), is_exception=True)
        return answer

    def _attempt(self, pool: _Pool, request: Request, deadline: float, timeout_s: float) -> Answer:
        link = _usable(pool)
        if link is None or self._is_closed:
            link = self._other_link(pool, link, deadline, timeout_s)
        try:
            answer = link.exchange(request, deadline)
        except BaseException:
            # Half an answer may be on its way: no later call may take it for its own.
            _let_go(pool, link)
            raise
        if self._is_closed:
            _let_go(pool, link)
        else:
            pool.give_back(link)
        return answer

    def _other_link(
        self, pool: _Pool, link: Link | None, deadline: float, timeout_s: float
    ) -> Link:
        """A link, although none is idle; a new one, or one that another call gives back."""
        if self._is_closed:
            if link is not None:
                _let_go(pool, link)
            raise system.TRANSIENT("the connection was closed by this client")
        # To make a connection takes several steps, and the last may be a name server's.
        step_aside()
        try:
            found = pool.wait(timeout_s)
        except Empty:
            told = f"all {self._links_max} connections stayed busy"
            raise system.TRANSIENT(told) from None
        if found is not None:
            if found.is_usable():
                return found
            found.close()
        try:
            return self._connect(deadline)
        except BaseException:
            pool.places.put(None)
            raise

    def _give_back(self, pool: _Pool, link: Link) -> None:
        if self._is_closed:
            _let_go(pool, link)
        else:
            pool.give_back(link)

    def _own_pool(self) -> _Pool:
        pool = self._pool
        # A forked child: the links are the parent's, and so may be the locks that its threads held.
        self._pool = own = _Pool(self._links_max)
        _drop(pool.idle)
        for (_, link, _, _), _ in pool.left:
            link.close()
        return own


def _usable(pool: _Pool) -> Link | None:
    while pool.idle:
        try:
            link = pool.idle.pop()
        except IndexError:
            return None
        if link.is_usable():
            return link
        _let_go(pool, link)
    return None


def _let_go(pool: _Pool, link: Link) -> None:
    """The link is closed, and another may have its place."""
    link.close()
    pool.places.put(None)


def _drop(links: deque[Any]) -> None:
    while links:
        try:
            links.pop().close()
        except IndexError:
            return
