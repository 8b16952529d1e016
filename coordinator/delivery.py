"""Telling participants, and finding out what came of it; once, or again until it has arrived.

It makes the calls that the protocol asks for and feeds back what happened. Commits that a
participant has not made durable are settled in batches. It decides nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any

from coordinator import calls
from coordinator.live import Enlisted, Live, Settings
from coordinator.participants import Place
from coordinator.protocol import Act, Effect, Event, Kind
from coordinator.redelivery import Redelivery
from coordinator.tasks import Tasks
from idl.call import limited
from idl.otids import otid_of
from idl.proxies import started_within

SETTLED_TOGETHER = 1000

_METHODS = {
    Act.SEND_PREPARE: attrgetter("prepare"),
    Act.SEND_ONE_PHASE: attrgetter("commit_one_phase"),
    Act.SEND_COMMIT: attrgetter("commit"),
    Act.SEND_ROLLBACK: attrgetter("rollback"),
    Act.SEND_FORGET: attrgetter("forget"),
}


class Delivery:
    """The calls to the participants of all transactions. May be used from any thread."""

    def __init__(
        self, tasks: Tasks, settings: Settings, feed: Callable[[Live, Event], None]
    ) -> None:
        self._tasks = tasks
        self._settings = settings
        self._feed = feed
        self._lock = threading.Lock()
        self._redelivery = Redelivery(tasks, settings.retry_s, settings.retry_s_max)
        self._unsettled: dict[str, list[tuple[Live, int]]] = {}

    def started(self, live: Live, effects: list[Effect]) -> list[Callable[[], None]]:
        """Calls that this thread makes itself; they are taken from the effects.

        All that can be sent at once are sent before any answer is waited for. If none can be, one
        call is made the ordinary way.
        """
        begun: list[Callable[[], None]] = []
        for effect in list(effects) if len(effects) > 1 else ():
            waiting = started_within(self._settings.call_s, self._method(live, effect))
            if waiting is not None:
                effects.remove(effect)
                begun.append(partial(self._finish, live, effect, waiting))
        if not begun:
            begun.append(partial(self.send, live, effects.pop()))
        return begun

    def send(self, live: Live, effect: Effect) -> None:
        """One call is made, and what came of it has happened."""
        with limited(self._settings.call_s):
            self._finish(live, effect, self._method(live, effect))

    def _method(self, live: Live, effect: Effect) -> Callable[[], Any]:
        method: Callable[[], Any] = _METHODS[effect.act](live.members[effect.participant].resource)
        return method

    def _finish(self, live: Live, effect: Effect, asked: Callable[[], Any]) -> None:
        """What came of a call, made now or under way, has happened."""
        number = effect.participant
        enlisted = live.members[number]
        name = enlisted.member.name
        live.attempts[number] = live.attempts.get(number, 0) + 1
        match effect.act:
            case Act.SEND_COMMIT:
                event = calls.commit(number, name, asked, enlisted.settler is not None)
            case Act.SEND_PREPARE:
                event = calls.prepare(number, name, asked)
            case Act.SEND_ONE_PHASE:
                event = calls.commit_one_phase(number, name, asked)
            case Act.SEND_ROLLBACK:
                event = calls.rollback(number, name, asked)
            case _:
                if not calls.forget(asked):
                    self.forget_later(enlisted)
                return
        self._answered(live, event)

    def _answered(self, live: Live, event: Event) -> None:
        if event.kind is Kind.DONE_LAZILY:
            self._settle_later(live, event.participant)
        self._feed(live, event)

    def commit_later(self, live: Live, number: int) -> None:
        """Tries again, after a while; one that cannot be reached holds nobody else up."""
        reference = live.members[number].member.resource
        self._redelivery.add(reference, lambda: self._commit_again(live, number))

    def _commit_again(self, live: Live, number: int) -> bool:
        participant = live.state.participants.find(number)
        if participant is None or participant.place is not Place.PREPARED or participant.is_told:
            return True
        enlisted = live.members[number]
        live.attempts[number] = live.attempts.get(number, 0) + 1
        with limited(self._settings.call_s):
            tell = enlisted.resource.commit
            event = calls.commit(number, enlisted.member.name, tell, enlisted.settler is not None)
        if event.kind is Kind.NOT_REACHED:
            live.troubles[number] = event.reason
            return False
        self._answered(live, event)
        return True

    def forget_later(self, enlisted: Enlisted) -> None:
        """The participant is told that its heuristic outcome is known."""
        self._redelivery.add(enlisted.member.resource, lambda: self._forget(enlisted))

    def _forget(self, enlisted: Enlisted) -> bool:
        with limited(self._settings.call_s):
            return calls.forget(enlisted.resource.forget)

    # --- Commits that are not durable yet

    def _settle_later(self, live: Live, number: int) -> None:
        settler = live.members[number].member.settler
        with self._lock:
            waiting = self._unsettled.setdefault(settler, [])
            waiting.append((live, number))
            is_first = len(waiting) == 1
        if is_first:
            self._tasks.after(self._settings.settle_s, self._settle, settler)

    def _settle(self, settler: str) -> None:
        with self._lock:
            waiting = self._unsettled.pop(settler, [])
            batch, rest = waiting[:SETTLED_TOGETHER], waiting[SETTLED_TOGETHER:]
            if rest:
                self._unsettled[settler] = rest
        if rest:
            self._tasks.spawn(self._settle, settler)
        if batch and not self._settle_now(batch):
            self._redelivery.add(settler, lambda: self._settle_now(batch))

    def _settle_now(self, batch: list[tuple[Live, int]]) -> bool:
        from_batch = [(live.gtrid, live.members[number]) for live, number in batch]
        branches = tuple(otid_of(gtrid, each.member.name) for gtrid, each in from_batch)
        target = from_batch[0][1].settler
        assert target is not None
        # Nobody waits for this, and a slow disk may have much to write.
        with limited(self._settings.answer_s):
            kind = calls.settle(target, branches)
        if kind is Kind.NOT_REACHED:
            return False
        for live, number in batch:
            if kind is Kind.SETTLED:
                self._feed(live, Event(Kind.SETTLED, number))
            else:
                self.send(live, Effect(Act.SEND_COMMIT, number))
        return True
