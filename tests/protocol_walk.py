"""Walks through the coordinator's protocol: what can happen next, and what must hold on every path.

A `World` is a transaction and what surrounds it: the calls that were sent and not yet answered, and
what is remembered of the way here, as far as a promise speaks of it. `possible` lists the events
that can happen; `advance` lets one happen, and asserts every promise of `coordinator/protocol.py`.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from coordinator.outcomes import Heuristic, damage_of
from coordinator.protocol import (
    Act,
    Effect,
    Effects,
    Event,
    Kind,
    Transaction,
    answer_to,
    check,
    decided,
    outcome_of,
    step,
)
from idl.cos import Status

TERMINAL = (Status.COMMITTED, Status.ROLLED_BACK, Status.UNKNOWN)
COMMIT_SIDE = (Status.COMMITTING, Status.COMMITTED)
ROLLBACK_SIDE = (Status.ROLLING_BACK, Status.ROLLED_BACK)
ENDING = (Kind.MARK, Kind.COMMIT, Kind.ROLLBACK)

_NOBODY: frozenset[int] = frozenset()
_COMMITTED_ANSWERS = (Kind.DONE, Kind.DONE_LAZILY, Kind.NOT_REACHED)
_ANSWERS: dict[Act, tuple[Kind, ...]] = {
    Act.SEND_PREPARE: (
        Kind.VOTED_COMMIT,
        Kind.VOTED_READ_ONLY,
        Kind.VOTED_ROLLBACK,
        Kind.NO_VOTE,
    ),
    Act.SEND_ONE_PHASE: (Kind.DONE, Kind.VOTED_ROLLBACK, Kind.NO_VOTE),
    Act.SEND_COMMIT: _COMMITTED_ANSWERS,
    # What is not reached the second time is tried again, and the protocol does not hear of it.
    Act.SEND_COMMIT_LATER: (Kind.DONE, Kind.DONE_LAZILY),
    Act.SEND_ROLLBACK: (Kind.DONE, Kind.NOT_REACHED),
}
# What a participant may say that ended its part alone, when it is asked this.
_HEURISTICS: dict[Act, tuple[Heuristic, ...]] = {
    Act.SEND_PREPARE: (Heuristic.HAZARD, Heuristic.MIXED),
    Act.SEND_ONE_PHASE: (Heuristic.HAZARD,),
    Act.SEND_COMMIT: (Heuristic.HAZARD, Heuristic.MIXED, Heuristic.ROLLED_BACK),
    Act.SEND_COMMIT_LATER: (Heuristic.HAZARD, Heuristic.MIXED, Heuristic.ROLLED_BACK),
    Act.SEND_ROLLBACK: (Heuristic.HAZARD, Heuristic.MIXED, Heuristic.COMMITTED),
}
_SENDS = frozenset(_ANSWERS)


class World(NamedTuple):
    """A transaction, what is under way for it, and what is remembered of the way here."""

    state: Transaction
    # How many participants there have been, and which of them may still have work to undo.
    joined: int = 0
    working: frozenset[int] = _NOBODY
    # Calls that were sent and not answered, commits not yet durable, a decision being forced.
    calls: frozenset[Effect] = frozenset()
    unsettled: frozenset[int] = _NOBODY
    is_forcing: bool = False
    is_forced: bool = False
    # Who has voted to commit or came prepared; who was told what; whose phase two was tried.
    prepared: frozenset[int] = _NOBODY
    told_commit: frozenset[int] = _NOBODY
    told_rollback: frozenset[int] = _NOBODY
    tried: frozenset[int] = _NOBODY
    durable: frozenset[int] = _NOBODY
    heuristics: frozenset[tuple[int, Heuristic | None]] = frozenset()
    answers: int = 0
    ends: int = 0

    @property
    def is_over(self) -> bool:
        """Whether the transaction has ended and nothing is under way for it."""
        is_quiet = not self.calls and not self.unsettled and not self.is_forcing
        return self.state.status in TERMINAL and is_quiet


class Happening(NamedTuple):
    """An event that can happen, and the call that it is the answer to."""

    event: Event
    call: Effect | None = None


class Limits(NamedTuple):
    """What may happen in a walk, at most."""

    participants: int
    # How many of the heuristic outcomes that an answer can have are tried.
    heuristics: int = 3
    # Operators' hands, marks and repeated requests: all that may happen at any time.
    has_all: bool = True


def starts() -> Iterator[World]:
    """Transactions of every kind, before anything has happened."""
    yield World(Transaction())
    yield World(Transaction(is_nested=True))
    for is_keyed, is_leased in ((True, False), (False, True), (True, True)):
        yield World(Transaction(is_keyed=is_keyed, is_leased=is_leased))


def found_on_disk(count: int) -> World:
    """A transaction whose decision a start has found."""
    numbers = tuple(range(count))
    state, effects = decided(numbers)
    everybody = frozenset(numbers)
    return World(
        state,
        count,
        calls=frozenset(effects),
        is_forced=True,
        prepared=everybody,
        told_commit=everybody,
        answers=1,
    )


# --- What can happen next ------------------------------------------------------------------------


def possible(world: World, limits: Limits) -> Iterator[Happening]:
    """The events that can happen now."""
    for event in _from_clients(world, limits):
        yield Happening(event)
    if world.is_forcing:
        yield Happening(Event(Kind.FORCED))
        yield Happening(Event(Kind.NOT_FORCED))
    for call in sorted(world.calls, key=_order):
        yield from _answers(call, limits)
    for number in sorted(world.unsettled):
        yield Happening(Event(Kind.SETTLED, number))
        # It was not to be settled, and is told to commit once more.
        yield from _answers(Effect(Act.SEND_COMMIT, number), limits)


def _from_clients(world: World, limits: Limits) -> Iterator[Event]:
    is_active = world.state.status is Status.ACTIVE
    room = limits.participants - world.joined
    if room > 0 and (is_active or limits.has_all):
        yield Event(Kind.JOIN, world.joined)
    for kind in ENDING:
        if is_active or limits.has_all or kind is Kind.ROLLBACK:
            yield Event(kind)
    if is_active and not world.state.is_nested:
        for more in range(1, room + 1):
            yield Event(Kind.COMMIT, prepared=tuple(range(world.joined, world.joined + more)))
    if limits.has_all and world.state.status in COMMIT_SIDE:
        for number in sorted(world.told_commit):
            yield Event(Kind.GIVEN_UP, number, heuristic=Heuristic.HAZARD)


def _order(call: Effect) -> tuple[int, int]:
    return call.act.value, call.participant


def _answers(call: Effect, limits: Limits) -> Iterator[Happening]:
    for kind in _ANSWERS[call.act]:
        yield Happening(Event(kind, call.participant), call)
    for heuristic in _HEURISTICS[call.act][: limits.heuristics]:
        event = Event(Kind.HEURISTIC, call.participant, heuristic=heuristic)
        yield Happening(event, call)


# --- Letting it happen ---------------------------------------------------------------------------


def advance(world: World, happening: Happening) -> World:
    """What there is after the event; asserts all that must hold."""
    event, call = happening
    state, effects = step(world.state, event)
    check(state)
    state.participants.recount()
    if call is not None:
        heard = _after_answer(world, event, call)
    else:
        heard = _after_event(world, event, is_refused=Effect(Act.REFUSE) in effects)
    _check_effects(heard, state, event, effects)
    after = _after_effects(heard._replace(state=state), effects)
    _check_way(world, after, effects)
    _check_outcome(after)
    _check_what_askers_are_told(after)
    return after


def _after_event(world: World, event: Event, is_refused: bool) -> World:
    """What the event itself tells, whatever the protocol makes of it."""
    number = event.participant
    alone = frozenset((number,))
    match event.kind:
        case Kind.JOIN if not is_refused:
            return world._replace(joined=world.joined + 1, working=world.working | alone)
        case Kind.COMMIT:
            arrived = frozenset(event.prepared)
            return world._replace(
                joined=world.joined + len(arrived),
                working=world.working | arrived,
                prepared=world.prepared | arrived,
            )
        case Kind.FORCED | Kind.NOT_FORCED:
            return world._replace(is_forcing=False, is_forced=event.kind is Kind.FORCED)
        case Kind.SETTLED:
            heard = world._replace(unsettled=world.unsettled - alone)
            return heard._replace(durable=heard.durable | alone)
        case _:
            return world


def _after_answer(world: World, event: Event, call: Effect) -> World:
    """One call is answered."""
    alone = frozenset((event.participant,))
    heard = world._replace(calls=world.calls - {call}, unsettled=world.unsettled - alone)
    is_phase_two = world.state.status in COMMIT_SIDE
    if is_phase_two:
        heard = heard._replace(tried=heard.tried | alone)
    match event.kind:
        case Kind.VOTED_COMMIT if world.state.status is Status.PREPARING:
            return heard._replace(prepared=heard.prepared | alone)
        case Kind.VOTED_READ_ONLY | Kind.VOTED_ROLLBACK:
            return heard._replace(working=heard.working - alone)
        case Kind.DONE_LAZILY:
            return heard._replace(unsettled=heard.unsettled | alone)
        case Kind.DONE if is_phase_two:
            return heard._replace(durable=heard.durable | alone)
        case _:
            return heard


def _after_effects(world: World, effects: Effects) -> World:
    sent = {effect for effect in effects if effect.act in _SENDS}
    forced = _of(effects, Act.FORCE_HEURISTIC)
    found = {p.number: p.heuristic for p in world.state.participants}
    noted = {(number, found.get(number)) for number in forced}
    acts = [effect.act for effect in effects]
    return world._replace(
        calls=world.calls | sent,
        is_forcing=world.is_forcing or Act.FORCE_DECISION in acts,
        told_commit=world.told_commit | _of(effects, Act.SEND_COMMIT),
        told_rollback=world.told_rollback | _of(effects, Act.SEND_ROLLBACK),
        heuristics=world.heuristics | noted,
        working=world.working - forced,
        answers=world.answers + acts.count(Act.ANSWER),
        ends=world.ends + acts.count(Act.END),
    )


def _of(effects: Effects, act: Act) -> frozenset[int]:
    return frozenset(effect.participant for effect in effects if effect.act is act)


# --- What must hold ------------------------------------------------------------------------------


def _check_effects(heard: World, state: Transaction, event: Event, effects: Effects) -> None:
    """What is done may be done now, to these participants, and in this order."""
    assert len(set(effects)) == len(effects), "something is done twice"
    committed, rolled_back = _of(effects, Act.SEND_COMMIT), _of(effects, Act.SEND_ROLLBACK)
    assert not committed or heard.is_forced, "told to commit before the decision was forced"
    assert committed <= heard.prepared, "told to commit without having voted for it"
    later = _of(effects, Act.SEND_COMMIT_LATER)
    assert later <= heard.told_commit, "told again without having been told"
    assert not (heard.told_commit | committed) & (heard.told_rollback | rolled_back)
    assert rolled_back <= heard.working, "told to roll back, with nothing to undo"
    is_asked_for = state.is_keyed or state.is_leased or heard.joined > 1
    assert not (_of(effects, Act.SEND_ONE_PHASE) and is_asked_for), "left to another"
    asked_alone = {call.participant for call in heard.calls if call.act is Act.SEND_ONE_PHASE}
    assert not rolled_back & asked_alone, "rolled back while it may be committing alone"
    done = _of(effects, Act.NOTE_DONE)
    assert done <= heard.durable, "noted as done, and is not durable"
    noted = {number for number, _ in heard.heuristics}
    assert not _of(effects, Act.FORCE_HEURISTIC) & noted, "a heuristic is recorded twice"
    _check_order(effects)
    if Act.REFUSE in [effect.act for effect in effects]:
        assert event.kind in (Kind.JOIN, Kind.MARK)
        assert (effects, state) == ((Effect(Act.REFUSE),), heard.state)


def _check_order(effects: Effects) -> None:
    acts = [effect.act for effect in effects]
    for number in _of(effects, Act.SEND_FORGET):
        force = effects.index(Effect(Act.FORCE_HEURISTIC, number))
        assert force < effects.index(Effect(Act.SEND_FORGET, number)), "forgotten before recorded"
    if Act.ANSWER in acts and Act.FORCE_HEURISTIC in acts:
        assert acts.index(Act.FORCE_HEURISTIC) < acts.index(Act.ANSWER)
    assert Act.END not in acts or acts[-1] is Act.END, "something is done after the end"
    assert Act.PASS_UP not in acts or acts[0] is Act.PASS_UP


def _check_way(before: World, after: World, effects: Effects) -> None:
    """What was once so stays so."""
    status = after.state.status
    if before.state.status in TERMINAL:
        assert after.state == before.state, "it has ended, and changes"
        assert effects in ((), (Effect(Act.REFUSE),)), "it has ended, and does something"
    if before.state.status in ROLLBACK_SIDE:
        assert status in ROLLBACK_SIDE, "it was being rolled back"
    if before.is_forced:
        assert status in COMMIT_SIDE, "its decision was on disk"
    if Act.ANSWER in [effect.act for effect in effects] and status is Status.COMMITTING:
        noted = {number for number, _ in after.heuristics}
        assert after.told_commit <= after.tried | noted, "answered before everybody was tried"


def _check_outcome(world: World) -> None:
    """What whoever asks is told agrees with what the participants were told."""
    status = world.state.status
    outcome = outcome_of(world.state)
    is_ended = status in TERMINAL
    assert outcome.status is status
    assert outcome.is_committed == (status in COMMIT_SIDE)
    assert world.ends == is_ended, "the end comes once, with the last state"
    assert world.answers <= 1
    assert world.answers == world.state.is_answered
    assert world.answers or not is_ended, "ended, and nobody was answered"
    if status is Status.UNKNOWN:
        assert outcome.damage is Heuristic.HAZARD
        assert world.heuristics, "nothing on disk says that it is unknown"
        return
    said = [heuristic for _, heuristic in world.heuristics if heuristic is not None]
    assert outcome.damage is damage_of(status in COMMIT_SIDE, said), "damage that is not told"
    noted = {number for number, _ in world.heuristics}
    if status in COMMIT_SIDE:
        assert world.told_commit == world.prepared, "somebody who is prepared was not told"
        assert not world.told_rollback
        under_way = {call.participant for call in world.calls} | world.unsettled
        assert world.told_commit <= under_way | world.durable | noted, "never told again"
    if status is Status.COMMITTED:
        is_written = world.is_forced or not world.state.is_keyed or world.state.is_nested
        assert is_written, "its key is not on disk"
        assert world.told_commit <= world.durable | noted, "forgotten before it was durable"
    if status in ROLLBACK_SIDE:
        assert not world.told_commit
        assert world.working <= world.told_rollback, "somebody who has work to undo was not told"


def _check_what_askers_are_told(world: World) -> None:
    """`answer_to`, for those who are named and those who are not."""
    state = world.state
    for number in (None, *range(world.joined)):
        is_named = world.is_forced and number in world.prepared
        told = answer_to(state, is_named, number)
        if state.status in (Status.PREPARING, Status.PREPARED, Status.UNKNOWN):
            assert told is Status.PREPARING, "it may still be committed"
        if world.is_forced:
            assert told is (Status.COMMITTED if is_named else Status.ROLLED_BACK)
        if state.status in ROLLBACK_SIDE:
            assert told is Status.ROLLED_BACK
        if told is Status.COMMITTED:
            assert number in world.told_commit


# --- Everywhere ----------------------------------------------------------------------------------


class Explored(NamedTuple):
    """Everything that can be reached: what follows what, and the rules that were met."""

    after: dict[World, set[World]]
    rules: set[tuple[Status, Kind]]

    def ending(self) -> set[World]:
        """The worlds from which some way leads to an end where nothing is under way."""
        before: dict[World, list[World]] = {}
        for world, following in self.after.items():
            for each in following:
                before.setdefault(each, []).append(world)
        found = {world for world in self.after if world.is_over}
        ahead = list(found)
        while ahead:
            fresh = [world for world in before.get(ahead.pop(), ()) if world not in found]
            found.update(fresh)
            ahead += fresh
        return found


def explore(beginnings: Iterable[World], limits: Limits) -> Explored:
    """Every world that can be reached, breadth first; each step is checked."""
    explored = Explored({}, set())
    ahead = deque(beginnings)
    seen = set(ahead)
    while ahead:
        world = ahead.popleft()
        following = explored.after[world] = set()
        for happening in possible(world, limits):
            explored.rules.add((world.state.status, happening.event.kind))
            following.add(advance(world, happening))
        fresh = [each for each in following if each not in seen]
        seen.update(fresh)
        ahead.extend(fresh)
    return explored


# --- Drawings in docstrings ----------------------------------------------------------------------

_ARROW = re.compile(r"\s*─+([a-z])─+►\s*")
_LISTED = re.compile(r"^    ([a-z])  \S", re.MULTILINE)


def drawn_arrows(docstring: str | None) -> dict[tuple[str, str], str]:
    """The arrows of lines like `A, B ──x──► C ──y──► D`: the letter of each, by its ends."""
    found: dict[tuple[str, str], str] = {}
    for line in (docstring or "").splitlines():
        pieces = _ARROW.split(line.strip())
        for froms, letter, to in zip(pieces[:-2:2], pieces[1::2], pieces[2::2], strict=True):
            for origin in froms.split(", "):
                assert (origin, to) not in found, f"{origin} to {to} is drawn twice"
                found[origin, to] = letter
    return found


def listed_letters(docstring: str | None) -> list[str]:
    """The letters that the list below a drawing explains, in its order."""
    return _LISTED.findall(docstring or "")
