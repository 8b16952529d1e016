"""`Mq_Settlement`: for nodes that have decided, whether anybody still waits for that.

It asks the settlers that the node names and says what they say. Nobody is told anything, nothing is
written down, so that whoever asks for another's transactions learns no more than that they are
over. A settler that does not answer keeps only those waiting whose voters it has.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from coordinator.database_drivers import Unreachable
from coordinator.database_objects import DatabaseObjects
from coordinator.deciding_nodes import DecidingNode
from idl import system
from idl.call import Address, Orb, Reference, current_call, limited
from idl.coordination import Mq_Settler, mqOtidList
from idl.cos import otid_t
from idl.databases import DATABASE_SETTLER
from idl.decider import mqDecided, mqDecidedList
from idl.mapping import InvalidValue
from idl.otids import GTRID_BYTES, SETTLER, otid_of, split_otid
from idl.places import node_at

# For each settler, and for all of them.
CALL_S = 2.0
CALLS_S = 8.0
DECIDED_MAX = 10_000
# A transaction that never was.
NOBODYS = bytes(GTRID_BYTES)

log = logging.getLogger("oncemq.coordinator")

# The reference of a settler, and a branch that it has.
_Branch = tuple[str, otid_t]
_OF_DATABASES = f"{DATABASE_SETTLER}/"


class SettlementServant:
    """See `Mq_Settlement`."""

    def __init__(
        self, orb: Orb, databases: DatabaseObjects | None, clock: Callable[[], float]
    ) -> None:
        self._orb = orb
        self._databases = databases
        self._clock = clock

    def isWithinReach(self, place: str) -> bool:
        """See `Mq_Settlement.isWithinReach`."""
        try:
            address = Address(*node_at(place))
            DecidingNode(self._orb, address, current_call().peer_host).mark(NOBODYS)
        except InvalidValue as wrong:
            raise system.BAD_PARAM(str(wrong)) from wrong
        except Unreachable as silent:
            log.warning("transactions are not decided at %s: %s", place, silent)
            return False
        return True

    def settle(self, decided: mqDecidedList) -> mqOtidList:
        """See `Mq_Settlement.settle`."""
        if len(decided) > DECIDED_MAX:
            raise system.IMP_LIMIT(f"{DECIDED_MAX} decisions in one call")
        try:
            waited_for = [(each.otid, _branches(each)) for each in decided]
        except InvalidValue as wrong:
            raise system.BAD_PARAM(str(wrong)) from wrong
        # In order, and each once.
        asked = dict.fromkeys([each for _, branches in waited_for for each in branches])
        ended = self._ended(asked)
        return tuple([otid for otid, branches in waited_for if ended.issuperset(branches)])

    def _ended(self, asked: Iterable[_Branch]) -> set[_Branch]:
        """Those of these branches that have ended."""
        deadline = self._clock() + CALLS_S
        by_settler: dict[str, list[otid_t]] = {}
        for reference, branch in asked:
            by_settler.setdefault(reference, []).append(branch)
        found: set[_Branch] = set()
        for reference, branches in by_settler.items():
            if self._clock() >= deadline:
                break
            try:
                settler = self._settler(reference)
                with limited(CALL_S):
                    over = settler.getEnded(tuple(branches))
            except (system.SystemException, InvalidValue) as silent:
                log.info("%d branches are not settled: %s: %s", len(branches), reference, silent)
                continue
            found.update([(reference, otid) for otid in over])
        return found

    def _settler(self, reference: str) -> Mq_Settler:
        name = Reference.parse(reference).name
        if name == SETTLER:
            return self._orb.named(reference, Mq_Settler, current_call().peer_host)
        if name.startswith(_OF_DATABASES) and self._databases is not None:
            # Those of databases are here, by whatever address somebody reaches us.
            return self._databases.settler(name.removeprefix(_OF_DATABASES))
        raise InvalidValue(f"{reference[:80]!r} is no settler")


def _branches(decided: mqDecided) -> list[_Branch]:
    gtrid, _ = split_otid(decided.otid)
    return [(voter.settler, otid_of(gtrid, voter.name)) for voter in decided.voters]
