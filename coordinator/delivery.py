"""Telling participants, and finding out what came of it; once, or again until it has arrived.

It makes the calls that the protocol asks for and feeds back what happened. Branches of one node are
told to commit together, with few calls however many they are; commits that a participant has not
made durable are settled in batches. It decides nothing.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any

from coordinator import calls
from coordinator.live import Enlisted, Live, Settings
from coordinator.participants import Place
from coordinator.protocol import Act, Effect, Event, Kind
from coordinator.redelivery import Redelivery
from coordinator.tasks import Tasks
from idl.call import limited
from idl.cos import otid_t
from idl.otids import BRANCH, SETTLER, member_name, otid_of
from idl.proxies import started_with

SETTLED_TOGETHER = 10_000
COMMITTED_TOGETHER = 5_000
# Of so many it is said at once that they have answered: others wait for the lock meanwhile.
TOLD_TOGETHER = 500
_SETTLER = f"PYRO:{SETTLER}"
# Looked up once: every transaction meets these.
_SEND_COMMIT, _DONE_LAZILY = Act.SEND_COMMIT, Kind.DONE_LAZILY

_METHODS = {
    Act.SEND_PREPARE: attrgetter("prepare"),
    Act.SEND_ONE_PHASE: attrgetter("commit_one_phase"),
    Act.SEND_COMMIT: attrgetter("commit"),
    Act.SEND_ROLLBACK: attrgetter("rollback"),
    Act.SEND_FORGET: attrgetter("forget"),
}


# What is told with one call: one thing to one participant, or "commit" to several of one server.
Parcel = tuple[Effect, ...]
# A parcel of one of several transactions.
Sent = tuple[Live, Parcel]
# Calls that were begun: what was sent, and what is left to do; it says who is to be asked alone.
Begun = list[tuple[list[Sent], Callable[[], list[Sent]]]]


def parcels(live: Live, effects: Iterable[Effect]) -> list[Parcel]:
    """The effects, so that those which can be had with one call are together."""
    told = list(effects)
    members = live.members
    is_commit = len(told) > 1 and told[0].act is _SEND_COMMIT
    if not is_commit or len({members[each].member.settler for _, each in told}) == len(told):
        return [(effect,) for effect in told]
    lines: dict[str, list[Effect]] = {}
    for effect in told:
        settler = members[effect.participant].member.settler
        lines.setdefault(settler or f"alone/{effect.participant}", []).append(effect)
    made: list[Parcel] = []
    for settler, line in lines.items():
        made += _packed(live, settler, line) if len(line) > 1 else [(line[0],)]
    return made


def _packed(live: Live, settler: str, line: list[Effect]) -> list[Parcel]:
    """Those together that the settler can commit by name; any other object is called itself."""
    name, _, address = settler.partition("@")
    if name != _SETTLER:
        return [(effect,) for effect in line]
    prefix = f"PYRO:{member_name(BRANCH, live.gtrid)}/"
    together: list[Effect] = []
    alone: list[Parcel] = []
    for effect in line:
        member = live.members[effect.participant].member
        if member.resource == f"{prefix}{member.name}@{address}":
            together.append(effect)
        else:
            alone.append((effect,))
    starts = range(0, len(together), COMMITTED_TOGETHER)
    return [*(tuple(together[start : start + COMMITTED_TOGETHER]) for start in starts), *alone]


# Branches of several transactions that one server can commit by their names.
Line = list[tuple[Live, int]]


def _lines(together: list[Sent]) -> tuple[list[Line], list[Sent]]:
    """The commits of which several go to one server, by server; and all else."""
    if together[0][0] is together[-1][0]:
        # Of one transaction: what can be had with one call is in one parcel already.
        return [], together
    lines: dict[str, Line] = {}
    alone: list[Sent] = []
    for live, parcel in together:
        # One that is many branches is a call of its own already, and may take long.
        server = _server_of(live, parcel[0]) if len(parcel) == 1 else ""
        if server:
            lines.setdefault(server, []).append((live, parcel[0].participant))
        else:
            alone.append((live, parcel))
    for server in [server for server, line in lines.items() if len(line) == 1]:
        alone += _each(lines.pop(server))
    made: list[Line] = []
    for line in lines.values():
        starts = range(0, len(line), COMMITTED_TOGETHER)
        made += [line[start : start + COMMITTED_TOGETHER] for start in starts]
    return made, alone


def _server_of(live: Live, effect: Effect) -> str:
    """Who can commit the branch by its name; nobody where it must be told itself, or otherwise."""
    if effect.act is not Act.SEND_COMMIT:
        return ""
    member = live.members[effect.participant].member
    name, _, address = member.settler.partition("@")
    resource = f"PYRO:{member_name(BRANCH, live.gtrid, member.name)}@{address}"
    return member.settler if name == _SETTLER and member.resource == resource else ""


def _each(line: Line) -> list[Sent]:
    return [(live, (Effect(Act.SEND_COMMIT, number),)) for live, number in line]


def _names(line: Line) -> tuple[otid_t, ...]:
    return tuple([otid_of(live.gtrid, live.members[number].member.name) for live, number in line])


def _at_hand(method: Callable[[], Any]) -> Callable[[], Any] | None:
    """A call for whose answer nobody waits, so that no thread is woken for it; None for others."""
    at_once = getattr(getattr(method, "__self__", None), "answers_at_once", ())
    return method if getattr(method, "__name__", "") in at_once else None


class Delivery:
    """The calls to the participants of all transactions. May be used from any thread."""

    def __init__(
        self,
        tasks: Tasks,
        settings: Settings,
        feed: Callable[[Live, Event], None],
        feed_all: Callable[[Live, Sequence[Event]], None],
    ) -> None:
        self._tasks = tasks
        self._settings = settings
        self._feed = feed
        self._feed_all = feed_all
        self._lock = threading.Lock()
        self._redelivery = Redelivery(tasks, settings.retry_s, settings.retry_s_max)
        self._unsettled: dict[str, list[tuple[Live, int]]] = {}

    def started(self, live: Live, waiting: list[Parcel]) -> list[Callable[[], None]]:
        """Calls that this thread makes itself; they are taken from those that wait.

        All that can be sent at once are sent before any answer is waited for. If none can be, one
        call is made the ordinary way.
        """
        begun: list[Callable[[], None]] = []
        left: list[Parcel] = []
        for parcel in waiting if len(waiting) > 1 else ():
            answer = self._started(live, parcel)
            if answer is None:
                left.append(parcel)
            else:
                begun.append(partial(self._finish, live, parcel, answer))
        if begun:
            waiting[:] = left
        else:
            begun.append(partial(self.send, live, waiting.pop()))
        return begun

    def _started(self, live: Live, parcel: Parcel) -> Callable[[], Any] | None:
        call_s = self._settings.call_s
        if len(parcel) > 1:
            return started_with(*self._method(live, parcel), call_s)
        act, number = parcel[0]
        method = _METHODS[act](live.members[number].resource)
        return started_with(method, (), call_s) or _at_hand(method)

    def started_at_once(
        self, live: Live, waiting: list[Parcel]
    ) -> tuple[list[tuple[Parcel, Callable[[], Any]]], list[Parcel]]:
        """Calls that are under way now, and what waits for their answers; and what is left."""
        begun: list[tuple[Parcel, Callable[[], Any]]] = []
        left: list[Parcel] = []
        for parcel in waiting:
            answer = self._started(live, parcel)
            if answer is None:
                left.append(parcel)
            else:
                begun.append((parcel, answer))
        return begun, left

    def heard(self, live: Live, parcel: Parcel, asked: Callable[[], Any]) -> Sequence[int]:
        """What came of a call has happened, but for commits that are not durable yet: whose.

        Of those there may be more, of which `have_committed` is told together.
        """
        act, number = parcel[0]
        if len(parcel) > 1 or act is not _SEND_COMMIT:
            self._finish(live, parcel, asked)
            return ()
        (name, _, _), _, settler = live.members[number]
        live.attempts[number] = live.attempts.get(number, 0) + 1
        event = calls.commit(number, name, asked, settler is not None)
        if event.kind is _DONE_LAZILY:
            return (number,)
        self._feed(live, event)
        return ()

    def have_committed(self, live: Live, numbers: Sequence[int]) -> None:
        """These have committed, and will be asked to make that durable."""
        self._settle_later(live, numbers)
        for event in _all_of(Kind.DONE_LAZILY, numbers):
            self._feed(live, event)

    def started_together(self, together: list[Sent]) -> tuple[Begun, list[Sent]]:
        """The same for several transactions: with one call to each server that knows them all.

        What could not be sent at once is left.
        """
        begun: Begun = []
        left: list[Sent] = []
        lines, alone = _lines(together)
        for line in lines:
            names = _names(line)
            answer = self._started_line(line, names)
            if answer is None:
                left += _each(line)
            else:
                begun.append((_each(line), partial(self._finish_line, line, names, answer)))
        for live, parcel in alone:
            answer = self._started(live, parcel)
            if answer is None:
                left.append((live, parcel))
            else:
                finish = partial(self._finish_alone, live, parcel, answer)
                begun.append(([(live, parcel)], finish))
        return begun, left

    def _started_line(self, line: Line, names: tuple[otid_t, ...]) -> Callable[[], Any] | None:
        live, number = line[0]
        settler = live.members[number].settler
        assert settler is not None
        return started_with(settler.commitBranches, (names,), self._settings.call_s)

    def _finish_line(
        self, line: Line, names: tuple[otid_t, ...], asked: Callable[[], Any]
    ) -> list[Sent]:
        for live, number in line:
            live.attempts[number] = live.attempts.get(number, 0) + 1
        places = {otid: place for place, otid in enumerate(names)}
        events, refused = calls.commit_together(places, asked)
        committed: dict[Live, list[int]] = {}
        for event in events:
            live, number = line[event.participant]
            if event.kind is _DONE_LAZILY:
                committed.setdefault(live, []).append(number)
            else:
                self._feed(live, event._replace(participant=number))
        for live, numbers in committed.items():
            self.have_committed(live, numbers)
        return _each([line[place] for place in refused])

    def _finish_alone(self, live: Live, parcel: Parcel, asked: Callable[[], Any]) -> list[Sent]:
        self._finish(live, parcel, asked)
        return []

    def send(self, live: Live, parcel: Parcel) -> None:
        """One call is made, and what came of it has happened."""
        method, arguments = self._method(live, parcel)
        with limited(self._settings.call_s):
            self._finish(live, parcel, partial(method, *arguments))

    def _method(self, live: Live, parcel: Parcel) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        act, number = parcel[0]
        enlisted = live.members[number]
        if len(parcel) == 1:
            return _METHODS[act](enlisted.resource), ()
        assert enlisted.settler is not None
        return enlisted.settler.commitBranches, (tuple(self._branches(live, parcel)),)

    def _branches(self, live: Live, parcel: Parcel) -> dict[otid_t, int]:
        named = [(number, live.members[number].member.name) for _, number in parcel]
        return {otid_of(live.gtrid, name): number for number, name in named}

    def _finish(self, live: Live, parcel: Parcel, asked: Callable[[], Any]) -> None:
        """What came of a call, made now or under way, has happened."""
        if len(parcel) > 1:
            self._finish_together(live, parcel, asked)
            return
        act, number = parcel[0]
        enlisted = live.members[number]
        name = enlisted.member.name
        live.attempts[number] = live.attempts.get(number, 0) + 1
        match act:
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
        self._answered(live, [event])

    def _finish_together(self, live: Live, parcel: Parcel, asked: Callable[[], Any]) -> None:
        events, refused = self._told_together(live, parcel, asked)
        self._answered(live, events)
        for number in refused:
            self.send(live, (Effect(Act.SEND_COMMIT, number),))

    def _told_together(
        self, live: Live, parcel: Parcel, asked: Callable[[], Any]
    ) -> tuple[list[Event], list[int]]:
        for _, number in parcel:
            live.attempts[number] = live.attempts.get(number, 0) + 1
        return calls.commit_together(self._branches(live, parcel), asked)

    def _answered(self, live: Live, events: list[Event]) -> None:
        others = [event for event in events if event.kind is not Kind.DONE_LAZILY]
        if others:
            self._feed_all(live, others)
        if len(others) < len(events):
            lazily = [each.participant for each in events if each.kind is Kind.DONE_LAZILY]
            self.have_committed(live, lazily)

    def commit_later(self, live: Live, numbers: Iterable[int]) -> None:
        """Tries again, after a while; one that cannot be reached holds nobody else up."""
        for parcel in parcels(live, [Effect(Act.SEND_COMMIT, number) for number in numbers]):
            self._send_later(live, parcel)

    def _send_later(self, live: Live, parcel: Parcel) -> None:
        reference = live.members[parcel[0].participant].member.resource
        self._redelivery.add(reference, partial(self._commit_again, live, parcel))

    def _commit_again(self, live: Live, parcel: Parcel) -> bool:
        waiting = tuple([effect for effect in parcel if _is_to_be_told(live, effect.participant)])
        if not waiting:
            return True
        method, arguments = self._method(live, waiting)
        asked = partial(method, *arguments)
        with limited(self._settings.call_s):
            if len(waiting) > 1:
                events, refused = self._told_together(live, waiting, asked)
            else:
                events, refused = [self._told_alone(live, waiting[0].participant, asked)], []
        if events and events[0].kind is Kind.NOT_REACHED:
            for event in events:
                live.troubles[event.participant] = event.reason
            return False
        self._answered(live, events)
        for number in refused:
            # Each for itself: together they would be refused again and again.
            self._send_later(live, (Effect(Act.SEND_COMMIT, number),))
        return True

    def _told_alone(self, live: Live, number: int, asked: Callable[[], Any]) -> Event:
        enlisted = live.members[number]
        live.attempts[number] = live.attempts.get(number, 0) + 1
        return calls.commit(number, enlisted.member.name, asked, enlisted.settler is not None)

    def forget_later(self, enlisted: Enlisted) -> None:
        """The participant is told that its heuristic outcome is known."""
        self._redelivery.add(enlisted.member.resource, lambda: self._forget(enlisted))

    def _forget(self, enlisted: Enlisted) -> bool:
        with limited(self._settings.call_s):
            return calls.forget(enlisted.resource.forget)

    # --- Commits that are not durable yet

    def _settle_later(self, live: Live, numbers: Sequence[int]) -> None:
        first: list[str] = []
        with self._lock:
            live.settling += len(numbers)
            for number in numbers:
                settler = live.members[number].member.settler
                waiting = self._unsettled.setdefault(settler, [])
                if not waiting:
                    first.append(settler)
                waiting.append((live, number))
        for settler in first:
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
        branches = tuple([otid_of(gtrid, each.member.name) for gtrid, each in from_batch])
        target = from_batch[0][1].settler
        assert target is not None
        # Nobody waits for this, and a slow disk may have much to write.
        with limited(self._settings.answer_s):
            kind = calls.settle(target, branches)
        if kind is Kind.NOT_REACHED:
            # This one may be away for long: the others are not waiting for it any more.
            self._note_settled(batch, is_last=False)
            return False
        with self._lock:
            for live, number in batch:
                live.settling -= 1
                if kind is Kind.SETTLED:
                    live.settled.append(number)
        if kind is not Kind.SETTLED:
            for live, together in itertools.groupby(batch, key=itemgetter(0)):
                told = [Effect(Act.SEND_COMMIT, number) for _, number in together]
                for parcel in parcels(live, told):
                    self.send(live, parcel)
        self._note_settled(batch, is_last=True)
        return True

    def _note_settled(self, batch: list[tuple[Live, int]], is_last: bool) -> None:
        """Who is durable is said to be, for a transaction at once: mostly it is over with that."""
        ended: list[tuple[Live, list[int]]] = []
        with self._lock:
            for live, _ in batch:
                if live.settled and not (is_last and live.settling):
                    ended.append((live, live.settled))
                    live.settled = []
        for live, numbers in ended:
            self._feed_all(live, _all_of(Kind.SETTLED, numbers))


def _all_of(kind: Kind, numbers: Sequence[int]) -> list[Event]:
    """That the same has happened to all of these, in events of a bearable size."""
    if len(numbers) <= TOLD_TOGETHER:
        return [Event(kind, numbers[0], (), None, "", tuple(numbers[1:]))]
    starts = range(0, len(numbers), TOLD_TOGETHER)
    together = [numbers[start : start + TOLD_TOGETHER] for start in starts]
    return [Event(kind, first, others=tuple(others)) for first, *others in together]


def _is_to_be_told(live: Live, number: int) -> bool:
    """Whether it has not been reached since, and nobody has given it up."""
    found = live.state.participants.find(number)
    return found is not None and found.place is Place.PREPARED and not found.is_told
