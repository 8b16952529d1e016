"""One branch of a transaction, as a table: what it does and answers, whatever it is asked. Pure.

    ACTIVE ───a──► PREPARED ───b──► COMMITTED
    ACTIVE ─────────────c──────────► COMMITTED
    ACTIVE ───d──► ROLLED_BACK
                   PREPARED ───e──► ROLLED_BACK
                   PREPARED ───f──► HEURISTICALLY_COMMITTED ───h──► UNKNOWN
                   PREPARED ───g──► HEURISTICALLY_ROLLED_BACK ───h──► UNKNOWN
    UNKNOWN ───i──► ROLLED_BACK

    a  Asked to prepare. All it did is forced, with whom to ask for the outcome; then it votes.
       On disk: prepared. A branch that changed nothing is over at once, and votes read-only (d).
    b  Told to commit. It happens. On disk: committed, or still prepared until the next forced
       write, and then it is told again.
    c  Asked to commit alone. It happens, and is forced before the answer.
    d  Told to roll back, out of time, its owner gone, or the node has crashed. On disk: nothing.
    e  Told to roll back by the coordinator. On disk: rolled back, or still prepared until the next
       forced write, and then it asks again.
    f  An operator has committed it. Forced, and remembered until it is forgotten.
    g  An operator has rolled it back. Forced, and remembered until it is forgotten.
    h  The coordinator knows of it; nothing is remembered.
    i  Told to roll back what it never heard of: from then on late work is refused.

Before it is prepared anybody may roll it back; after that nobody may, but the coordinator and an
operator: time alone never ends it. What is unknown is never voted for.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from mqserver.storage.contract import Outcome


class Request(enum.Enum):
    """What a branch can be asked, or told."""

    # There is one object of each: it is found by that, not by its name.
    __hash__ = object.__hash__

    PREPARE = enum.auto()
    COMMIT = enum.auto()
    COMMIT_ONE_PHASE = enum.auto()
    ROLLBACK = enum.auto()
    FORGET = enum.auto()
    # Nobody has heard of the owner for too long.
    EXPIRE = enum.auto()
    OPERATOR_COMMIT = enum.auto()
    OPERATOR_ROLLBACK = enum.auto()


class Act(enum.Enum):
    """What is to be done at the storage."""

    NOTHING = enum.auto()
    PREPARE = enum.auto()
    COMMIT = enum.auto()
    COMMIT_ONE_PHASE = enum.auto()
    ROLLBACK = enum.auto()
    RESOLVE_COMMIT = enum.auto()
    RESOLVE_ROLLBACK = enum.auto()
    FORGET = enum.auto()


class Answer(enum.Enum):
    """What is said then."""

    OK = enum.auto()
    VOTE = enum.auto()
    VOTE_ROLLBACK = enum.auto()
    ROLLED_BACK = enum.auto()
    NOT_PREPARED = enum.auto()
    HEURISTIC_COMMIT = enum.auto()
    HEURISTIC_ROLLBACK = enum.auto()
    HEURISTIC_HAZARD = enum.auto()
    WRONG_STATE = enum.auto()


class Step(NamedTuple):
    """What is done, what is said, and what the branch is then."""

    act: Act
    answer: Answer
    after: Outcome


_O, _R, _A, _N = Outcome, Request, Act, Answer


def _stays(outcome: Outcome, answer: Answer) -> Step:
    return Step(Act.NOTHING, answer, outcome)


TRANSITIONS: dict[tuple[Outcome, Request], Step] = {
    (_O.ACTIVE, _R.PREPARE): Step(_A.PREPARE, _N.VOTE, _O.PREPARED),
    (_O.ACTIVE, _R.COMMIT): _stays(_O.ACTIVE, _N.NOT_PREPARED),
    (_O.ACTIVE, _R.COMMIT_ONE_PHASE): Step(_A.COMMIT_ONE_PHASE, _N.OK, _O.COMMITTED),
    (_O.ACTIVE, _R.ROLLBACK): Step(_A.ROLLBACK, _N.OK, _O.ROLLED_BACK),
    (_O.ACTIVE, _R.FORGET): _stays(_O.ACTIVE, _N.OK),
    (_O.ACTIVE, _R.EXPIRE): Step(_A.ROLLBACK, _N.OK, _O.ROLLED_BACK),
    (_O.ACTIVE, _R.OPERATOR_COMMIT): _stays(_O.ACTIVE, _N.NOT_PREPARED),
    (_O.ACTIVE, _R.OPERATOR_ROLLBACK): Step(_A.ROLLBACK, _N.OK, _O.ROLLED_BACK),
    # Prepared: the vote again, the decision, or an operator's hand. Not time.
    (_O.PREPARED, _R.PREPARE): Step(_A.PREPARE, _N.VOTE, _O.PREPARED),
    (_O.PREPARED, _R.COMMIT): Step(_A.COMMIT, _N.OK, _O.COMMITTED),
    (_O.PREPARED, _R.COMMIT_ONE_PHASE): _stays(_O.PREPARED, _N.WRONG_STATE),
    (_O.PREPARED, _R.ROLLBACK): Step(_A.ROLLBACK, _N.OK, _O.ROLLED_BACK),
    (_O.PREPARED, _R.FORGET): _stays(_O.PREPARED, _N.OK),
    (_O.PREPARED, _R.EXPIRE): _stays(_O.PREPARED, _N.OK),
    (_O.PREPARED, _R.OPERATOR_COMMIT): Step(_A.RESOLVE_COMMIT, _N.OK, _O.HEURISTICALLY_COMMITTED),
    (_O.PREPARED, _R.OPERATOR_ROLLBACK): Step(
        _A.RESOLVE_ROLLBACK, _N.OK, _O.HEURISTICALLY_ROLLED_BACK
    ),
    # Committed: told again, it says the same again, and sees to it that it is on disk.
    (_O.COMMITTED, _R.PREPARE): _stays(_O.COMMITTED, _N.WRONG_STATE),
    (_O.COMMITTED, _R.COMMIT): Step(_A.COMMIT, _N.OK, _O.COMMITTED),
    (_O.COMMITTED, _R.COMMIT_ONE_PHASE): Step(_A.COMMIT_ONE_PHASE, _N.OK, _O.COMMITTED),
    (_O.COMMITTED, _R.ROLLBACK): _stays(_O.COMMITTED, _N.HEURISTIC_COMMIT),
    # Rolled back: it never votes for anything any more, and late work is refused.
    (_O.ROLLED_BACK, _R.PREPARE): _stays(_O.ROLLED_BACK, _N.VOTE_ROLLBACK),
    (_O.ROLLED_BACK, _R.COMMIT): _stays(_O.ROLLED_BACK, _N.NOT_PREPARED),
    (_O.ROLLED_BACK, _R.COMMIT_ONE_PHASE): _stays(_O.ROLLED_BACK, _N.ROLLED_BACK),
    (_O.ROLLED_BACK, _R.ROLLBACK): _stays(_O.ROLLED_BACK, _N.OK),
    # An operator's decisions: told what agrees with them, they are no damage.
    (_O.HEURISTICALLY_COMMITTED, _R.PREPARE): _stays(
        _O.HEURISTICALLY_COMMITTED, _N.HEURISTIC_HAZARD
    ),
    (_O.HEURISTICALLY_COMMITTED, _R.COMMIT): _stays(_O.HEURISTICALLY_COMMITTED, _N.OK),
    (_O.HEURISTICALLY_COMMITTED, _R.COMMIT_ONE_PHASE): _stays(
        _O.HEURISTICALLY_COMMITTED, _N.WRONG_STATE
    ),
    (_O.HEURISTICALLY_COMMITTED, _R.ROLLBACK): _stays(
        _O.HEURISTICALLY_COMMITTED, _N.HEURISTIC_COMMIT
    ),
    (_O.HEURISTICALLY_COMMITTED, _R.FORGET): Step(_A.FORGET, _N.OK, _O.UNKNOWN),
    (_O.HEURISTICALLY_ROLLED_BACK, _R.PREPARE): _stays(
        _O.HEURISTICALLY_ROLLED_BACK, _N.HEURISTIC_HAZARD
    ),
    (_O.HEURISTICALLY_ROLLED_BACK, _R.COMMIT): _stays(
        _O.HEURISTICALLY_ROLLED_BACK, _N.HEURISTIC_ROLLBACK
    ),
    (_O.HEURISTICALLY_ROLLED_BACK, _R.COMMIT_ONE_PHASE): _stays(
        _O.HEURISTICALLY_ROLLED_BACK, _N.ROLLED_BACK
    ),
    (_O.HEURISTICALLY_ROLLED_BACK, _R.ROLLBACK): _stays(_O.HEURISTICALLY_ROLLED_BACK, _N.OK),
    (_O.HEURISTICALLY_ROLLED_BACK, _R.FORGET): Step(_A.FORGET, _N.OK, _O.UNKNOWN),
    # Unknown: it never was here, a crash took it before it was prepared, or it is long over. Never
    # voted for; and told to commit it says so, because somebody may have lost something.
    (_O.UNKNOWN, _R.PREPARE): Step(_A.ROLLBACK, _N.VOTE_ROLLBACK, _O.ROLLED_BACK),
    (_O.UNKNOWN, _R.COMMIT): _stays(_O.UNKNOWN, _N.NOT_PREPARED),
    (_O.UNKNOWN, _R.COMMIT_ONE_PHASE): Step(_A.ROLLBACK, _N.ROLLED_BACK, _O.ROLLED_BACK),
    (_O.UNKNOWN, _R.ROLLBACK): Step(_A.ROLLBACK, _N.OK, _O.ROLLED_BACK),
}
_OVER = (
    _O.COMMITTED,
    _O.ROLLED_BACK,
    _O.HEURISTICALLY_COMMITTED,
    _O.HEURISTICALLY_ROLLED_BACK,
    _O.UNKNOWN,
)
for _outcome in _OVER:
    TRANSITIONS |= {
        (_outcome, request): _stays(_outcome, Answer.NOT_PREPARED)
        for request in (Request.OPERATOR_COMMIT, Request.OPERATOR_ROLLBACK)
    }
    TRANSITIONS[_outcome, Request.EXPIRE] = _stays(_outcome, Answer.OK)
    TRANSITIONS.setdefault((_outcome, Request.FORGET), _stays(_outcome, Answer.OK))

# The arrows of the drawing; that of d and i may also be a vote.
ARROWS: dict[tuple[Outcome, Outcome], str] = {
    (_O.ACTIVE, _O.PREPARED): "a",
    (_O.PREPARED, _O.COMMITTED): "b",
    (_O.ACTIVE, _O.COMMITTED): "c",
    (_O.ACTIVE, _O.ROLLED_BACK): "d",
    (_O.PREPARED, _O.ROLLED_BACK): "e",
    (_O.PREPARED, _O.HEURISTICALLY_COMMITTED): "f",
    (_O.PREPARED, _O.HEURISTICALLY_ROLLED_BACK): "g",
    (_O.HEURISTICALLY_COMMITTED, _O.UNKNOWN): "h",
    (_O.HEURISTICALLY_ROLLED_BACK, _O.UNKNOWN): "h",
    (_O.UNKNOWN, _O.ROLLED_BACK): "i",
}

assert all((o, r) in TRANSITIONS for o in Outcome for r in Request), "a row is missing"


def step(outcome: Outcome, request: Request) -> Step:
    """What a branch that is this does when it is asked that."""
    return TRANSITIONS[outcome, request]
