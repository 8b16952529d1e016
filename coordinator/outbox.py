"""What those who have their turn together send: to each server one call, for all of them.

Decisions that shared a forced write are carried out at the same time, mostly at the same nodes. The
first who has something to send lets the others of its round come too, and sends for all of them.
Each answer is then waited for by itself, and who has all of its own goes on: a node that does not
answer holds nobody up who has nothing to do with it. A call that cannot be sent at once is made by
another thread. For those who take turns on one thread; see `idl.turns`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from greenlet import greenlet

from coordinator.delivery import Delivery, Parcel, Sent
from coordinator.live import Live
from idl.turns import SteppedAside, Turns


class _Round:
    """What is sent together, how many answers each transaction needs, and who waits for them."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self.missing: Counter[Live] = Counter()
        self.parked: dict[Live, list[greenlet]] = {}


class Outbox:
    """What is about to be sent, by one thread whose calls take turns."""

    def __init__(
        self,
        delivery: Delivery,
        send_beside: Callable[[Live, Parcel], None],
        on_failure: Callable[[BaseException], object],
    ) -> None:
        self._delivery = delivery
        self._send_beside = send_beside
        self._on_failure = on_failure
        # The round that others can still join.
        self._open: _Round | None = None

    def send(self, turns: Turns, live: Live, parcels: list[Parcel]) -> None:
        """They have been sent, and were answered or are another thread's by now."""
        joined = self._open
        if joined is not None:
            joined.sent += [(live, parcel) for parcel in parcels]
            turns.park(joined.parked.setdefault(live, []))
            return
        if turns.waiting:
            own = self._open = _Round()
            own.sent += [(live, parcel) for parcel in parcels]
            turns.let_others_come()
            self._open = None
            if own.parked:
                self._send_round(turns, own, live)
                return
        self._send_alone(live, parcels)

    def _send_alone(self, live: Live, parcels: list[Parcel]) -> None:
        """The same where nobody else waits, and a turn for each answer would only cost time."""
        begun, left = self._delivery.started_at_once(live, parcels)
        for parcel in left:
            self._send_beside(live, parcel)
        committed: list[int] = []
        try:
            for parcel, asked in begun:
                try:
                    committed += self._delivery.heard(live, parcel, asked)
                except SteppedAside:
                    # It would need a new connection, for which others would have to wait.
                    self._send_beside(live, parcel)
        finally:
            if committed:
                self._delivery.have_committed(live, committed)

    def _send_round(self, turns: Turns, own: _Round, live: Live) -> None:
        try:
            begun, left = self._delivery.started_together(own.sent)
            for each, parcel in left:
                self._send_beside(each, parcel)
            for sent, finish in begun:
                own.missing.update(_transactions_of(sent))
                turns.start(self._finish_for_all, turns, own, sent, finish)
        finally:
            # Those for whom no answer is to come.
            for each, parked in own.parked.items():
                if not own.missing[each]:
                    turns.unpark(parked)
        if own.missing[live]:
            turns.park(own.parked.setdefault(live, []))

    def _finish_for_all(
        self, turns: Turns, own: _Round, sent: list[Sent], finish: Callable[[], list[Sent]]
    ) -> None:
        try:
            self._finish(sent, finish)
        # Nobody calls this who could be told: whoever runs the program must hear of it.
        except Exception as failed:  # noqa: BLE001
            self._on_failure(failed)
        finally:
            for live in _transactions_of(sent):
                own.missing[live] -= 1
                if not own.missing[live]:
                    turns.unpark(own.parked.pop(live, []))

    def _finish(self, sent: list[Sent], finish: Callable[[], list[Sent]]) -> None:
        try:
            left = finish()
        except SteppedAside:
            left = sent
        for live, parcel in left:
            self._send_beside(live, parcel)


def _transactions_of(sent: list[Sent]) -> set[Live]:
    return {live for live, _ in sent}
