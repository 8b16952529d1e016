"""Calls to participants, and what their answers mean: the only place that reads them.

Each function makes one call, or waits for one that is under way, and returns the event that came of
it. Nothing is decided here, and nothing is repeated. An answer that did not come never counts as
one: a lost vote is no vote, and a lost acknowledgement is asked for again.
"""

from __future__ import annotations

from collections.abc import Callable

from coordinator.outcomes import Heuristic
from coordinator.protocol import Event, Kind
from idl import system
from idl.coordination import Mq_Settler
from idl.cos import (
    HeuristicCommit,
    HeuristicHazard,
    HeuristicMixed,
    HeuristicRollback,
    NotPrepared,
    Vote,
    otid_t,
)
from idl.mapping import UserException

_HEURISTICS = {
    HeuristicCommit: Heuristic.COMMITTED,
    HeuristicRollback: Heuristic.ROLLED_BACK,
    HeuristicMixed: Heuristic.MIXED,
    HeuristicHazard: Heuristic.HAZARD,
}
# Looked up once: every transaction meets these.
_DONE, _DONE_LAZILY = Kind.DONE, Kind.DONE_LAZILY
_VOTES = {
    Vote.COMMIT: Kind.VOTED_COMMIT,
    Vote.READ_ONLY: Kind.VOTED_READ_ONLY,
    Vote.ROLLBACK: Kind.VOTED_ROLLBACK,
}


def prepare(number: int, name: str, asked: Callable[[], Vote]) -> Event:
    """Asks for the vote."""
    try:
        vote = asked()
    except (HeuristicMixed, HeuristicHazard) as heuristic:
        return _heuristic(number, heuristic, f"{name} ended its part before it was asked")
    except system.TRANSACTION_ROLLEDBACK as refused:
        return Event(Kind.VOTED_ROLLBACK, number, reason=f"{name} rolled back: {refused.reason}")
    except system.SystemException as failed:
        return Event(Kind.NO_VOTE, number, reason=f"{name} did not vote: {failed}")
    reason = f"{name} voted to roll back" if vote is Vote.ROLLBACK else ""
    return Event(_VOTES[vote], number, reason=reason)


def commit_one_phase(number: int, name: str, asked: Callable[[], None]) -> Event:
    """Lets the only participant decide."""
    try:
        asked()
    except HeuristicHazard as heuristic:
        return _heuristic(number, heuristic, f"{name} does not know whether it committed")
    except system.TRANSACTION_ROLLEDBACK as refused:
        return Event(Kind.VOTED_ROLLBACK, number, reason=f"{name} rolled back: {refused.reason}")
    except system.SystemException as failed:
        if failed.completed is system.Completion.NO:
            return Event(Kind.NO_VOTE, number, reason=f"{name} was not reached: {failed}")
        told = f"{name} was asked to commit, and its answer was lost: {failed}"
        return Event(Kind.HEURISTIC, number, heuristic=Heuristic.HAZARD, reason=told)
    return Event(Kind.DONE, number)


def commit(number: int, name: str, asked: Callable[[], None], is_lazy: bool) -> Event:
    """Tells a prepared participant to commit."""
    try:
        asked()
    except (HeuristicRollback, HeuristicMixed, HeuristicHazard) as heuristic:
        return _heuristic(number, heuristic, f"{name} had ended its part alone")
    except NotPrepared:
        told = f"{name} had voted to commit, and knows nothing of it any more"
        return Event(Kind.HEURISTIC, number, heuristic=Heuristic.HAZARD, reason=told)
    except system.SystemException as failed:
        # Also when the object is not there: a server that is starting has not published it yet,
        # and a branch that is forgotten here would be told that it was rolled back.
        return Event(Kind.NOT_REACHED, number, reason=str(failed))
    return Event(_DONE_LAZILY if is_lazy else _DONE, number)


def commit_together(
    branches: dict[otid_t, int], asked: Callable[[], tuple[otid_t, ...]]
) -> tuple[list[Event], list[int]]:
    """Tells prepared participants of one server to commit; and those to be asked for themselves."""
    try:
        refused = {branches[otid] for otid in asked() if otid in branches}
    except system.BAD_OPERATION:
        # A node of an earlier version, which takes them one by one.
        return [], list(branches.values())
    except system.SystemException as failed:
        reason = str(failed)
        lost = [Event(Kind.NOT_REACHED, each, reason=reason) for each in branches.values()]
        return lost, []
    done = [number for number in branches.values() if number not in refused]
    return [Event(Kind.DONE_LAZILY, number) for number in done], sorted(refused)


def rollback(number: int, name: str, asked: Callable[[], None]) -> Event:
    """Tells a participant to roll back."""
    try:
        asked()
    except (HeuristicCommit, HeuristicMixed, HeuristicHazard) as heuristic:
        return _heuristic(number, heuristic, f"{name} had ended its part alone")
    except system.OBJECT_NOT_EXIST:
        return Event(Kind.DONE, number)
    except system.SystemException as failed:
        return Event(Kind.NOT_REACHED, number, reason=str(failed))
    return Event(Kind.DONE, number)


def forget(asked: Callable[[], None]) -> bool:
    """Tells a participant that its heuristic outcome is known; whether it was reached."""
    try:
        asked()
    except system.OBJECT_NOT_EXIST:
        return True
    except system.SystemException:
        return False
    return True


def settle(settler: Mq_Settler, branches: tuple[otid_t, ...]) -> Kind:
    """Has commits made durable; a kind of event for all of them."""
    try:
        settler.settle(branches)
    except NotPrepared:
        # One of them is not what it should be: each is asked for itself.
        return Kind.DONE_LAZILY
    except system.SystemException:
        return Kind.NOT_REACHED
    return Kind.SETTLED


def _heuristic(number: int, raised: UserException, reason: str) -> Event:
    return Event(Kind.HEURISTIC, number, heuristic=_HEURISTICS[type(raised)], reason=reason)
