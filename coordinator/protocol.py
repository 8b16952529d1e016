"""Two-phase commit as the coordinator runs it: a table from state and event to state and effects.

Pure: it sends nothing, writes nothing and knows no time. `transactions.py` carries the effects out,
in order, and comes back with what happened as the next event. Presumed abort: of a transaction that
is rolled back, nothing is ever written. It is long because drawing, rules, table and invariants are
one thing and are read together.

    ACTIVE ───a──► PREPARING ───b──► PREPARED ───c──► COMMITTING ───d──► COMMITTED
    ACTIVE ─────────────i──────────► PREPARED ──────────────m──────────► COMMITTED
    ACTIVE ──────────────────────────────j─────────────────────────────► COMMITTED
                   PREPARING ─────────────────────e────────────────────► COMMITTED
    ACTIVE ───f──► MARKED_ROLLBACK
    ACTIVE, MARKED_ROLLBACK, PREPARING, PREPARED ───g──► ROLLING_BACK ───h──► ROLLED_BACK
    ACTIVE, MARKED_ROLLBACK, PREPARING, PREPARED ──────────k────────────────► ROLLED_BACK
                   PREPARING ───l──► UNKNOWN

    a  Commit was asked for, and somebody has not voted yet. They are asked to prepare, all at once;
       one that is alone is asked to commit in one phase, unless somebody will ask here for the
       outcome: by a key, or by a name of their own. On disk: nothing.
    b  The last vote came, and none was against. The decision is handed to the disk.
    c  The decision has been forced. This is the commit point: nothing turns it back.
       Everybody who is named in it is told, again and again until they have answered.
    d  Everybody's commit is durable, or recorded as a heuristic. The decision may be forgotten.
    e  Nobody changed anything; or the only participant has committed, alone. On disk: nothing.
    f  Somebody has seen to it that the transaction can only be rolled back.
    g  It is rolled back: asked for, out of time, a vote against, no vote, or the disk is full. All
       who may have work to undo are told, once; whoever is not reached will ask, and be told then.
    h  All of them have answered, or could not be reached.
    i  Commit was asked for, and everybody had prepared already, or nobody takes part and the key of
       the transaction is to be remembered. The decision is handed to the disk.
    j  Commit was asked for, and nobody takes part; or a subtransaction hands its participants up.
    k  It is rolled back, and there is nobody to be told; or the only participant rolled back alone.
    l  The only participant was asked to commit alone, and whether it did is not known.
    m  The decision has been forced, and there is nobody to be told: its key is what it says.

What holds in each state, checked after every step:

- A participant is in exactly one of the sets pending, prepared, read-only, failed, heuristic, or
  has left: it has answered the last thing that it will be told.
- ACTIVE, MARKED_ROLLBACK: all are pending; nobody has been asked anything.
- PREPARING: somebody is pending, and nobody has failed.
- PREPARED, COMMITTING: somebody is prepared, or there is a key; nobody is pending or failed. In
  COMMITTING somebody is prepared, and the decision is on disk.
- COMMITTED, ROLLED_BACK, UNKNOWN: nobody is pending, prepared or failed.
- Nobody has been told the outcome before COMMITTING or ROLLING_BACK.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import NamedTuple

from coordinator.outcomes import Heuristic, Outcome, damage_of
from coordinator.participants import NOBODY, Participant, Participants, Place
from idl.cos import Status


class Transaction(NamedTuple):
    """The state of one transaction."""

    status: Status = Status.ACTIVE
    participants: Participants = NOBODY
    is_nested: bool = False
    # It has a key, by which a repeated one is known; so its commit is always written.
    is_keyed: bool = False
    # Clients ask for it by its name, also after a restart: so its commit is never left to another.
    is_leased: bool = False
    # The only participant decides, by committing in one phase.
    is_delegated: bool = False
    is_answered: bool = False
    reason: str = ""


class Kind(enum.Enum):
    """What can happen to a transaction."""

    __hash__ = object.__hash__

    JOIN = enum.auto()
    MARK = enum.auto()
    COMMIT = enum.auto()
    ROLLBACK = enum.auto()
    VOTED_COMMIT = enum.auto()
    VOTED_READ_ONLY = enum.auto()
    VOTED_ROLLBACK = enum.auto()
    NO_VOTE = enum.auto()
    FORCED = enum.auto()
    NOT_FORCED = enum.auto()
    DONE = enum.auto()
    DONE_LAZILY = enum.auto()
    SETTLED = enum.auto()
    NOT_REACHED = enum.auto()
    HEURISTIC = enum.auto()
    GIVEN_UP = enum.auto()


class Event(NamedTuple):
    """One thing that has happened."""

    kind: Kind
    participant: int = -1
    # COMMIT: participants that have prepared already.
    prepared: tuple[int, ...] = ()
    heuristic: Heuristic | None = None
    reason: str = ""
    # DONE_LAZILY, SETTLED: others of whom the same is to be said, as if each came by itself.
    others: tuple[int, ...] = ()


class Act(enum.Enum):
    """What is to be done."""

    __hash__ = object.__hash__

    SEND_PREPARE = enum.auto()
    SEND_ONE_PHASE = enum.auto()
    SEND_COMMIT = enum.auto()
    SEND_COMMIT_LATER = enum.auto()
    SEND_ROLLBACK = enum.auto()
    SEND_FORGET = enum.auto()
    FORCE_DECISION = enum.auto()
    FORCE_HEURISTIC = enum.auto()
    NOTE_DONE = enum.auto()
    PASS_UP = enum.auto()
    ANSWER = enum.auto()
    END = enum.auto()
    REFUSE = enum.auto()


class Effect(NamedTuple):
    """One thing that is to be done, for one participant or for the transaction."""

    act: Act
    participant: int = -1


Effects = tuple[Effect, ...]
Rule = Callable[[Transaction, Event], tuple[Transaction, Effects]]

NOTHING: Effects = ()
_FORCE_DECISION: Effects = (Effect(Act.FORCE_DECISION),)
_ANSWER, _END = Effect(Act.ANSWER), Effect(Act.END)
_ENDED: Effects = (_END,)
_ANSWERED_AND_ENDED: Effects = (_ANSWER, _END)
# Looked up once: these are met by every transaction.
_PENDING, _IS_PREPARED = Place.PENDING, Place.PREPARED
_PREPARED, _COMMITTING = Status.PREPARED, Status.COMMITTING
_SEND_COMMIT, _NOTE_DONE = Act.SEND_COMMIT, Act.NOTE_DONE
# Makes values of theirs without their own `__new__`, which is Python and only names the fields.
_new = tuple.__new__
# Where those are who may have work to undo.
_OUTSTANDING = (Place.PENDING, Place.PREPARED, Place.FAILED)


def step(transaction: Transaction, event: Event) -> tuple[Transaction, Effects]:
    """What the transaction is after the event, and what is to be done."""
    before, kind = transaction.status, event.kind
    rule = TRANSITIONS.get((before, kind))
    assert rule is not None, f"{kind.name} cannot happen in {before.name}"
    after, effects = rule(transaction, event)
    # Nothing has changed that was not checked before, where the same is handed back.
    if after is not transaction:
        status, participants = after.status, after.participants
        if status is not before:
            check(after)
            assert (before, status) in ARROWS
            if status in _RECOUNTED and not participants.is_counted:
                participants.recount()
        elif participants.counts is not transaction.participants.counts:
            # Where status and counts are the same, `check` would look at what it has seen.
            check(after)
    return after, effects


def decided(numbers: tuple[int, ...]) -> tuple[Transaction, Effects]:
    """A transaction whose decision was found on disk, and what is to be done about it."""
    prepared = Participants([Participant(number, Place.PREPARED) for number in numbers])
    transaction = Transaction(Status.COMMITTING, prepared, is_answered=True)
    return transaction, tuple(Effect(Act.SEND_COMMIT, number) for number in numbers)


def outcome_of(transaction: Transaction) -> Outcome:
    """What whoever asks is told."""
    status, reason = transaction.status, transaction.reason
    if status is Status.UNKNOWN:
        return Outcome(Status.UNKNOWN, Heuristic.HAZARD, reason)
    if not transaction.participants.counts[Place.HEURISTIC]:
        return Outcome(status, None, reason) if reason else _OUTCOMES[status]
    is_commit = status in (Status.COMMITTING, Status.COMMITTED)
    heuristics = [p.heuristic for p in transaction.participants if p.heuristic is not None]
    return Outcome(status, damage_of(is_commit, heuristics), reason)


def answer_to(transaction: Transaction, is_named: bool, number: int | None) -> Status | None:
    """What a participant that asks for the outcome is told; None: that it is not prepared.

    `is_named` says whether the decision, if there is one, counts it in; `number` is that of one
    which registered itself, and can be prepared only when it was asked to.
    """
    match transaction.status:
        case Status.COMMITTING | Status.COMMITTED:
            return Status.COMMITTED if is_named else Status.ROLLED_BACK
        case Status.ROLLING_BACK | Status.ROLLED_BACK:
            return Status.ROLLED_BACK
        case Status.MARKED_ROLLBACK:
            return Status.ROLLED_BACK
        case Status.ACTIVE:
            return None if number is not None else Status.PREPARING
        case _:
            # Never "rolled back" while a vote is under way: it may still be committed.
            return Status.PREPARING


# --- Before the vote -----------------------------------------------------------------------------


def _join(transaction: Transaction, event: Event) -> tuple[Transaction, Effects]:
    joined = transaction.participants.joined_by((Participant(event.participant),))
    return transaction._replace(participants=joined), NOTHING


def _mark(transaction: Transaction, event: Event) -> tuple[Transaction, Effects]:
    return transaction._replace(status=Status.MARKED_ROLLBACK, reason=event.reason), NOTHING


def _commit(transaction: Transaction, event: Event) -> tuple[Transaction, Effects]:
    if transaction.is_nested:
        return _hand_up(transaction)
    everybody = transaction.participants
    if event.prepared:
        everybody = everybody.joined_by_prepared(event.prepared)
    elif not everybody and not transaction.is_keyed:
        return _finish(transaction, Status.COMMITTED)
    if not everybody.counts[_PENDING]:
        return _turned(transaction, _PREPARED, everybody), _FORCE_DECISION
    pending = everybody.numbers_at(Place.PENDING)
    gathered = transaction._replace(participants=everybody)
    asked = gathered._replace(status=Status.PREPARING)
    if len(everybody) == 1 and not transaction.is_keyed and not transaction.is_leased:
        return asked._replace(is_delegated=True), (Effect(Act.SEND_ONE_PHASE, pending[0]),)
    return asked, tuple(Effect(Act.SEND_PREPARE, number) for number in pending)


def _hand_up(transaction: Transaction) -> tuple[Transaction, Effects]:
    after, effects = _finish(transaction._replace(participants=NOBODY), Status.COMMITTED)
    return after, (Effect(Act.PASS_UP), *effects)


# --- Voting --------------------------------------------------------------------------------------


def _vote_for(transaction: Transaction, event: Event) -> tuple[Transaction, Effects]:
    return _count(_put(transaction, Participant(event.participant, Place.PREPARED)))


def _vote_read_only(transaction: Transaction, event: Event) -> tuple[Transaction, Effects]:
    return _count(_put(transaction, Participant(event.participant, Place.READ_ONLY)))


def _count(transaction: Transaction) -> tuple[Transaction, Effects]:
    counts = transaction.participants.counts
    if counts[Place.PENDING]:
        return transaction, NOTHING
    if not counts[Place.PREPARED] and not transaction.is_keyed:
        return _finish(transaction, Status.COMMITTED)
    return transaction._replace(status=Status.PREPARED), _FORCE_DECISION


def _vote_against(transaction: Transaction, event: Event) -> tuple[Transaction, Effects]:
    # Who votes so has rolled back by itself, and needs no telling.
    return _roll_back(_without(transaction, event.participant), event)


def _no_vote(transaction: Transaction, event: Event) -> tuple[Transaction, Effects]:
    return _roll_back(_put(transaction, Participant(event.participant, Place.FAILED)), event)


def _heuristic_vote(transaction: Transaction, event: Event) -> tuple[Transaction, Effects]:
    if transaction.is_delegated:
        lost = _without(transaction, event.participant)
        after, effects = _finish(lost._replace(reason=event.reason), Status.UNKNOWN)
        return after, (Effect(Act.FORCE_HEURISTIC, event.participant), *effects)
    noted, effects = _note_heuristic(transaction, event)
    after, others = _roll_back(noted, event)
    return after, (*effects, *others)


def _committed_alone(transaction: Transaction, event: Event) -> tuple[Transaction, Effects]:
    assert transaction.is_delegated
    return _finish(_without(transaction, event.participant), Status.COMMITTED)


# --- Rolling back --------------------------------------------------------------------------------


def _roll_back(transaction: Transaction, event: Event) -> tuple[Transaction, Effects]:
    reason = transaction.reason or event.reason
    turned = transaction._replace(reason=reason)
    outstanding = turned.participants.numbers_at(*_OUTSTANDING)
    told = tuple([Effect(Act.SEND_ROLLBACK, number) for number in outstanding])
    if not told:
        return _finish(turned, Status.ROLLED_BACK)
    return turned._replace(status=Status.ROLLING_BACK), told


def _roll_back_unless_delegated(
    transaction: Transaction, event: Event
) -> tuple[Transaction, Effects]:
    # The only participant may have committed already; only its answer can tell.
    return (
        _ignore(transaction, event) if transaction.is_delegated else _roll_back(transaction, event)
    )


def _rolled_back_there(transaction: Transaction, event: Event) -> tuple[Transaction, Effects]:
    if _unnoted(transaction, event) is None:
        return transaction, NOTHING
    rest = _without(transaction, event.participant)
    return _finish(rest, Status.ROLLED_BACK) if not _is_outstanding(rest) else (rest, NOTHING)


def _heuristic_rollback(transaction: Transaction, event: Event) -> tuple[Transaction, Effects]:
    if _unnoted(transaction, event) is None:
        return transaction, NOTHING
    noted, effects = _note_heuristic(transaction, event)
    if _is_outstanding(noted):
        return noted, effects
    after, others = _finish(noted, Status.ROLLED_BACK)
    return after, (*effects, *others)


# --- Committing ----------------------------------------------------------------------------------


def _tell_everybody(transaction: Transaction, event: Event) -> tuple[Transaction, Effects]:
    prepared = transaction.participants.numbers_at(_IS_PREPARED)
    if not prepared:
        return _finish(transaction, Status.COMMITTED)
    told = tuple([_new(Effect, (_SEND_COMMIT, number)) for number in prepared])
    return _turned(transaction, _COMMITTING, transaction.participants), told


def _committed_there(transaction: Transaction, event: Event) -> tuple[Transaction, Effects]:
    everybody, gone = transaction.participants.left_by((event.participant, *event.others))
    if not gone:
        return transaction, NOTHING
    noted = tuple([_new(Effect, (_NOTE_DONE, number)) for number in gone])
    return _go_on(transaction, everybody, noted)


def _committed_lazily(transaction: Transaction, event: Event) -> tuple[Transaction, Effects]:
    everybody = transaction.participants.told((event.participant, *event.others))
    if everybody is transaction.participants:
        return transaction, NOTHING
    return _go_on(transaction, everybody, NOTHING)


def _not_reached(transaction: Transaction, event: Event) -> tuple[Transaction, Effects]:
    if _unnoted(transaction, event) is None:
        return transaction, NOTHING
    tried = Participant(event.participant, Place.PREPARED, is_tried=True)
    later = Effect(Act.SEND_COMMIT_LATER, event.participant)
    return _go_on(transaction, transaction.participants.put(tried), (later,))


def _heuristic_commit(transaction: Transaction, event: Event) -> tuple[Transaction, Effects]:
    if _unnoted(transaction, event) is None:
        return transaction, NOTHING
    noted, effects = _note_heuristic(transaction, event)
    return _go_on(noted, noted.participants, effects)


def _go_on(
    transaction: Transaction, everybody: Participants, effects: Effects
) -> tuple[Transaction, Effects]:
    """Whoever waits is answered once everybody has been tried; the end comes with the last."""
    if not everybody.counts[_IS_PREPARED]:
        others = _ENDED if transaction.is_answered else _ANSWERED_AND_ENDED
        return _answered(transaction, Status.COMMITTED, everybody), (*effects, *others)
    if transaction.is_answered or everybody.untried:
        return _turned(transaction, transaction.status, everybody), effects
    return _answered(transaction, transaction.status, everybody), (*effects, _ANSWER)


# --- Answers to what comes late or too early -----------------------------------------------------


def _ignore(transaction: Transaction, event: Event) -> tuple[Transaction, Effects]:
    return transaction, NOTHING


def _refuse(transaction: Transaction, event: Event) -> tuple[Transaction, Effects]:
    return transaction, (Effect(Act.REFUSE),)


# --- Parts of the rules --------------------------------------------------------------------------


def _finish(transaction: Transaction, status: Status) -> tuple[Transaction, Effects]:
    after = _answered(transaction, status, transaction.participants)
    return after, _ENDED if transaction.is_answered else _ANSWERED_AND_ENDED


def _answered(transaction: Transaction, status: Status, participants: Participants) -> Transaction:
    # All but status, participants, and whether it was answered.
    return _new(Transaction, (status, participants, *transaction[2:6], True, transaction.reason))


def _turned(transaction: Transaction, status: Status, participants: Participants) -> Transaction:
    """The same with another status and these participants: what happens to every transaction."""
    return _new(Transaction, (status, participants, *transaction[2:]))


def _unnoted(transaction: Transaction, event: Event) -> Participant | None:
    """The participant; None if it has left, or its heuristic is recorded: what it says is late."""
    found = transaction.participants.find(event.participant)
    return None if found is None or found.place is Place.HEURISTIC else found


def _note_heuristic(transaction: Transaction, event: Event) -> tuple[Transaction, Effects]:
    noted = Participant(event.participant, Place.HEURISTIC, heuristic=event.heuristic)
    # Forced before it may be forgotten there, or nobody would know any more.
    force = Effect(Act.FORCE_HEURISTIC, event.participant)
    return _put(transaction, noted), (force, Effect(Act.SEND_FORGET, event.participant))


def _is_outstanding(transaction: Transaction) -> bool:
    counts = transaction.participants.counts
    return any([counts[place] for place in _OUTSTANDING])


def _put(transaction: Transaction, changed: Participant) -> Transaction:
    everybody = transaction.participants.put(changed)
    return _turned(transaction, transaction.status, everybody)


def _without(transaction: Transaction, number: int) -> Transaction:
    return _turned(transaction, transaction.status, transaction.participants.without(number))


# --- The table -----------------------------------------------------------------------------------

_S, _K = Status, Kind

# Every state and event that can meet. What is not here cannot happen, and `IMPOSSIBLE` says so.
TRANSITIONS: dict[tuple[Status, Kind], Rule] = {
    (_S.ACTIVE, _K.JOIN): _join,
    (_S.ACTIVE, _K.MARK): _mark,
    (_S.ACTIVE, _K.COMMIT): _commit,
    (_S.ACTIVE, _K.ROLLBACK): _roll_back,
    (_S.MARKED_ROLLBACK, _K.JOIN): _refuse,
    (_S.MARKED_ROLLBACK, _K.MARK): _ignore,
    (_S.MARKED_ROLLBACK, _K.COMMIT): _roll_back,
    (_S.MARKED_ROLLBACK, _K.ROLLBACK): _roll_back,
    (_S.PREPARING, _K.JOIN): _refuse,
    (_S.PREPARING, _K.MARK): _refuse,
    (_S.PREPARING, _K.COMMIT): _ignore,
    (_S.PREPARING, _K.ROLLBACK): _roll_back_unless_delegated,
    (_S.PREPARING, _K.VOTED_COMMIT): _vote_for,
    (_S.PREPARING, _K.VOTED_READ_ONLY): _vote_read_only,
    (_S.PREPARING, _K.VOTED_ROLLBACK): _vote_against,
    (_S.PREPARING, _K.NO_VOTE): _no_vote,
    (_S.PREPARING, _K.HEURISTIC): _heuristic_vote,
    (_S.PREPARING, _K.DONE): _committed_alone,
    (_S.PREPARED, _K.JOIN): _refuse,
    (_S.PREPARED, _K.MARK): _refuse,
    (_S.PREPARED, _K.COMMIT): _ignore,
    # Too late: the decision may be on disk.
    (_S.PREPARED, _K.ROLLBACK): _ignore,
    (_S.PREPARED, _K.FORCED): _tell_everybody,
    (_S.PREPARED, _K.NOT_FORCED): _roll_back,
    (_S.COMMITTING, _K.JOIN): _refuse,
    (_S.COMMITTING, _K.MARK): _refuse,
    (_S.COMMITTING, _K.COMMIT): _ignore,
    (_S.COMMITTING, _K.ROLLBACK): _ignore,
    (_S.COMMITTING, _K.DONE): _committed_there,
    (_S.COMMITTING, _K.DONE_LAZILY): _committed_lazily,
    (_S.COMMITTING, _K.SETTLED): _committed_there,
    (_S.COMMITTING, _K.NOT_REACHED): _not_reached,
    (_S.COMMITTING, _K.HEURISTIC): _heuristic_commit,
    (_S.COMMITTING, _K.GIVEN_UP): _heuristic_commit,
    (_S.ROLLING_BACK, _K.JOIN): _refuse,
    (_S.ROLLING_BACK, _K.MARK): _refuse,
    (_S.ROLLING_BACK, _K.COMMIT): _ignore,
    (_S.ROLLING_BACK, _K.ROLLBACK): _ignore,
    # Votes of those who were asked before it was rolled back.
    (_S.ROLLING_BACK, _K.VOTED_COMMIT): _ignore,
    (_S.ROLLING_BACK, _K.VOTED_READ_ONLY): _ignore,
    (_S.ROLLING_BACK, _K.VOTED_ROLLBACK): _ignore,
    (_S.ROLLING_BACK, _K.NO_VOTE): _ignore,
    (_S.ROLLING_BACK, _K.DONE): _rolled_back_there,
    (_S.ROLLING_BACK, _K.NOT_REACHED): _rolled_back_there,
    (_S.ROLLING_BACK, _K.HEURISTIC): _heuristic_rollback,
}
for _status in (_S.COMMITTED, _S.ROLLED_BACK, _S.UNKNOWN):
    TRANSITIONS |= {(_status, kind): _refuse for kind in (_K.JOIN, _K.MARK)}
    TRANSITIONS |= {(_status, kind): _ignore for kind in (_K.COMMIT, _K.ROLLBACK)}
# What was sent before the end is answered after it.
TRANSITIONS |= {
    (_S.COMMITTED, kind): _ignore
    for kind in (_K.DONE, _K.DONE_LAZILY, _K.SETTLED, _K.NOT_REACHED, _K.HEURISTIC, _K.GIVEN_UP)
}
TRANSITIONS |= {
    (_S.ROLLED_BACK, kind): _ignore
    for kind in (
        _K.VOTED_COMMIT,
        _K.VOTED_READ_ONLY,
        _K.VOTED_ROLLBACK,
        _K.NO_VOTE,
        _K.DONE,
        _K.NOT_REACHED,
        _K.HEURISTIC,
    )
}

STATES = (
    _S.ACTIVE,
    _S.MARKED_ROLLBACK,
    _S.PREPARING,
    _S.PREPARED,
    _S.COMMITTING,
    _S.COMMITTED,
    _S.ROLLING_BACK,
    _S.ROLLED_BACK,
    _S.UNKNOWN,
)
# What most of them are told.
_OUTCOMES = {status: Outcome(status) for status in STATES}
IMPOSSIBLE = frozenset((s, k) for s in STATES for k in Kind if (s, k) not in TRANSITIONS)

# The arrows of the drawing.
ARROWS: dict[tuple[Status, Status], str] = {
    (_S.ACTIVE, _S.PREPARING): "a",
    (_S.PREPARING, _S.PREPARED): "b",
    (_S.PREPARED, _S.COMMITTING): "c",
    (_S.COMMITTING, _S.COMMITTED): "d",
    (_S.PREPARING, _S.COMMITTED): "e",
    (_S.ACTIVE, _S.MARKED_ROLLBACK): "f",
    (_S.ACTIVE, _S.ROLLING_BACK): "g",
    (_S.MARKED_ROLLBACK, _S.ROLLING_BACK): "g",
    (_S.PREPARING, _S.ROLLING_BACK): "g",
    (_S.PREPARED, _S.ROLLING_BACK): "g",
    (_S.ROLLING_BACK, _S.ROLLED_BACK): "h",
    (_S.ACTIVE, _S.PREPARED): "i",
    (_S.ACTIVE, _S.COMMITTED): "j",
    (_S.ACTIVE, _S.ROLLED_BACK): "k",
    (_S.MARKED_ROLLBACK, _S.ROLLED_BACK): "k",
    (_S.PREPARING, _S.ROLLED_BACK): "k",
    (_S.PREPARED, _S.ROLLED_BACK): "k",
    (_S.PREPARING, _S.UNKNOWN): "l",
    (_S.PREPARED, _S.COMMITTED): "m",
}

_ALLOWED = {
    _S.ACTIVE: {Place.PENDING},
    _S.MARKED_ROLLBACK: {Place.PENDING},
    _S.PREPARING: {Place.PENDING, Place.PREPARED, Place.READ_ONLY},
    _S.PREPARED: {Place.PREPARED, Place.READ_ONLY},
    _S.COMMITTING: {Place.PREPARED, Place.READ_ONLY, Place.HEURISTIC},
    _S.COMMITTED: {Place.READ_ONLY, Place.HEURISTIC},
    _S.ROLLING_BACK: set(Place),
    _S.ROLLED_BACK: {Place.READ_ONLY, Place.HEURISTIC},
    _S.UNKNOWN: set(),
}
_REQUIRED = {
    _S.PREPARING: {Place.PENDING},
    _S.PREPARED: {Place.PREPARED},
    _S.COMMITTING: {Place.PREPARED},
    _S.ROLLING_BACK: {Place.PENDING, Place.PREPARED, Place.FAILED},
}


# Before a decision is written, and before all is forgotten, nobody must have been miscounted.
_RECOUNTED = frozenset((_S.PREPARED, _S.COMMITTED, _S.ROLLED_BACK, _S.UNKNOWN))
# Where nobody may be, and where somebody must be.
_HOLDS = {
    status: (tuple(set(Place) - _ALLOWED[status]), tuple(_REQUIRED.get(status, ())))
    for status in STATES
}


def check(transaction: Transaction) -> None:
    """What holds in the state that the transaction is in, as far as counts can tell.

    The participants see to the rest: that each is there once, and where it belongs.
    """
    status, counts = transaction.status, transaction.participants.counts
    forbidden, required = _HOLDS[status]
    for place in forbidden:
        assert not counts[place], f"{place} in {status.name}"
    for place in required:
        if counts[place]:
            break
    else:
        is_enough = not required or (status is _S.PREPARED and transaction.is_keyed)
        assert is_enough, f"nobody is {required}"
    assert not transaction.is_nested or status not in (_S.PREPARING, _S.PREPARED)
