"""Where connections arrive: whoever has said nothing yet waits here, and costs no thread.

To start a thread is the dearest step of letting somebody in. If each connection had one from the
beginning, the honest would wait behind those of a crowd that only knocks. So a connection is handed
on when something of it has arrived; one that is closed before is let go, and so is one that is
silent for too long. What arrived is not read here, and who it is from is not known.

One thread uses it; others may interrupt the connections that wait.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

# So many are accepted before those that waited, and have spoken, have their turn.
ACCEPTED_TOGETHER = 64


class Arriving(Protocol):
    """A connection that was accepted."""

    # When it must have proven itself.
    let_in_by: float

    @property
    def sock(self) -> socket.socket:
        """What it is reached by."""

    def has_left(self) -> bool | None:
        """Whether the other side is gone; None as long as it has said nothing."""


P = TypeVar("P", bound=Arriving)


class Doorway(Generic[P]):
    """A listening socket, and the connections that have said nothing yet."""

    def __init__(
        self,
        listener: socket.socket,
        made: Callable[[socket.socket, str], P],
        admit: Callable[[P], bool],
    ) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._made = made
        # Whether there is a place for it; where there is none, it has been told.
        self._admit = admit
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        # In the order of their deadlines, since all of them have as long.
        self._silent: dict[P, None] = {}

    def wait(self) -> tuple[list[P], list[P]]:
        """Waits until somebody comes, speaks or leaves: who has spoken, and who is to be let go.

        Raises `OSError` when nobody can be accepted.
        """
        spoken: list[P] = []
        gone: list[P] = []
        ready = self._selector.select(self._seconds_left())
        for key, _ in ready:
            if key.data is not None:
                self._look(key.data, spoken, gone)
        self._let_go_late(gone)
        for key, _ in ready:
            if key.data is None:
                self._accept(spoken, gone)
        return spoken, gone

    def close(self) -> list[P]:
        """Nobody waits here any longer: those who did."""
        self._selector.close()
        return list(self._silent)

    def _seconds_left(self) -> float | None:
        first = next(iter(self._silent), None)
        return None if first is None else max(first.let_in_by - time.monotonic(), 0.0)

    def _look(self, peer: P, spoken: list[P], gone: list[P]) -> None:
        has_left = peer.has_left()
        if has_left is not None:
            self._forget(peer)
            (gone if has_left else spoken).append(peer)

    def _let_go_late(self, gone: list[P]) -> None:
        now = time.monotonic()
        while (first := next(iter(self._silent), None)) is not None and first.let_in_by <= now:
            self._forget(first)
            gone.append(first)

    def _forget(self, peer: P) -> None:
        del self._silent[peer]
        self._selector.unregister(peer.sock)

    def _accept(self, spoken: list[P], gone: list[P]) -> None:
        for _ in range(ACCEPTED_TOGETHER):
            try:
                sock, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:
                if spoken or gone:
                    # They come first; it will be found again.
                    return
                raise
            peer = self._made(sock, address[0])
            has_left = peer.has_left()
            if has_left:
                # Before it takes the place of somebody else.
                gone.append(peer)
            elif not self._admit(peer):
                continue
            elif has_left is None:
                self._silent[peer] = None
                self._selector.register(sock, selectors.EVENT_READ, peer)
            else:
                spoken.append(peer)
