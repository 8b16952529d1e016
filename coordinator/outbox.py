"""What those who have their turn together send: to each server one call, for all of them.

Decisions that shared a forced write are carried out at the same time, mostly at the same nodes. The
first who has something to send lets the others of its round come too, then sends for all of them,
waits for the answers, and what came of each has happened when the others go on. A call that cannot
be sent at once is made by another thread. For those who take turns on one thread; see `idl.turns`.
"""

from __future__ import annotations

from collections.abc import Callable

from greenlet import greenlet

from coordinator.delivery import Delivery, Parcel, Sent
from coordinator.live import Live
from idl.turns import SteppedAside, Turns


class Outbox:
    """What is about to be sent, by one thread whose calls take turns."""

    def __init__(self, delivery: Delivery, send_beside: Callable[[Live, Parcel], None]) -> None:
        self._delivery = delivery
        self._send_beside = send_beside
        # Who is about to be sent for, and waits for that.
        self._waiting: list[Sent] = []
        self._parked: list[greenlet] = []

    def send(self, turns: Turns, live: Live, parcels: list[Parcel]) -> None:
        """They have been sent, and were answered or are another thread's by now."""
        is_first = not self._waiting
        self._waiting += [(live, parcel) for parcel in parcels]
        if not is_first:
            turns.park(self._parked)
            return
        if turns.waiting:
            turns.let_others_come()
        together, self._waiting = self._waiting, []
        parked, self._parked = self._parked, []
        try:
            self._send_all(together)
        finally:
            turns.unpark(parked)

    def _send_all(self, together: list[Sent]) -> None:
        begun, left = self._delivery.started_together(together)
        for live, parcel in left:
            self._send_beside(live, parcel)
        for sent, finish in begun:
            try:
                left = finish()
            except SteppedAside:
                # It would need a new connection, for which others would have to wait.
                left = sent
            for live, parcel in left:
                self._send_beside(live, parcel)
