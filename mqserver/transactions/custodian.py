"""Rows of databases that carry puts for this node: looked for, taken over, and removed.

One thread does both in turn, so that no mark is forgotten while an answer is looked at that may
still have its row (see `Custody`). It asks the coordinator, who has the databases. In a quiet hour
it finds nothing: owners tell of their rows at once, and rows are looked at only when they are a few
seconds old. After a start, and when somebody tells of puts that are not held any more, all are.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from idl import system
from idl.call import Orb, limited
from idl.cos import HeuristicRollback, otid_t
from idl.custody import CUSTODY, Mq_Custody, mqCarried
from idl.mapping import InvalidValue, UserException
from idl.otids import GTRID_BYTES, IDENTITY_BYTES, NULL_OTID, otid_of, split_otid
from mqserver.errors import MqError, StorageError
from mqserver.transactions.custody import Custody, NotOurs
from mqserver.transactions.requests import named

log = logging.getLogger("oncemq.node")
audit = logging.getLogger("oncemq.audit")

_FAILURES = (MqError, system.SystemException, UserException, InvalidValue)


@dataclass(frozen=True)
class CarryingTimes:
    """When rows are removed and looked for; in seconds.

    A row is removed so long `after_s` it was put here, and again later. Every `look_s` rows are
    looked for that are `age_s` old. At a start this is waited for, but not for longer than
    `start_s`; whoever waits for a look gives up after `patience_s`. A look into a database stops
    after `longest_s`, and the next one goes on there. Whether an unknown database carries is asked
    within `ask_s`, and not again so soon.
    """

    after_s: float = 1.0
    again_s: float = 5.0
    look_s: float = 5.0
    age_s: float = 3.0
    call_s: float = 10.0
    start_s: float = 1.5
    patience_s: float = 4.0
    longest_s: float = 10.0
    ask_s: float = 0.5


REMOVED_AT_ONCE = 500
PAUSE_S = 0.1
REFUSED_KEPT = 10_000

# Puts what the row carries, unless that is here already; whether it was not. Raises `NotOurs`.
TakeOver = Callable[[bytes, str, bytes], bool]


class Custodian:
    """Looks after what is carried for one node. `start` and `close` it once."""

    def __init__(
        self,
        orb: Orb,
        coordinator: str,
        custody: Custody,
        clock: Callable[[], float],
        times: CarryingTimes,
    ) -> None:
        self._custody = custody
        self._clock = clock
        self._times = times
        self._relay = (
            orb.proxy(f"PYRO:{CUSTODY}@{coordinator}", Mq_Custody, times.call_s)
            if coordinator
            else None
        )
        # The coordinator that was reached, and its databases that carry, as last heard.
        self._identity = b""
        self._databases: tuple[str, ...] = ()
        # One asks for all who want to know, and not again before this time.
        self._is_asking = False
        self._ask_at = clock()
        self._take_over: TakeOver = _nobody
        # Rows that are not ours, and were complained about.
        self._refused: dict[bytes, None] = {}
        # Where a look had to stop; and until when nothing is taken over, as the storage refused it.
        self._stopped_at: dict[str, otid_t] = {}
        self._refused_until = clock()
        self._monitor = threading.Condition()
        # Looks at everything that were asked for, and that were begun and done.
        self._wanted = 0
        self._done = 0
        self._failure: Exception | None = None
        self._is_closed = False
        self._next_look_at = clock()
        self._thread = threading.Thread(target=self._run, name="node's custodian", daemon=True)

    def start(self, take_over: TakeOver) -> None:
        """Rows are looked for. What those carry that are committed by now is here.

        Unless nothing was ever carried, or the coordinator and its databases say nothing for long.
        """
        self._take_over = take_over
        if self._relay is None:
            return
        deadline = self._clock() + self._times.start_s
        pause = threading.Event()
        while self._custody.secret and (left_s := deadline - self._clock()) > 0:
            if self._looked(0.0, min(left_s, self._times.call_s)) is None and self._databases:
                break
            pause.wait(PAUSE_S)
        self._thread.start()

    def close(self) -> None:
        """Nobody looks any more."""
        with self._monitor:
            self._is_closed = True
            self._monitor.notify_all()
        if self._thread.is_alive():
            self._thread.join(self._times.patience_s)

    def why_not(self, gtrid: bytes, database: str) -> str:
        """Why the transaction cannot be carried by this database; empty where it can."""
        if self._relay is None:
            return "the node has no coordinator"
        if not self.knows(database):
            return "the node does not know yet of a database that carries"
        if gtrid[:IDENTITY_BYTES] != self._identity:
            return "the transaction is another coordinator's"
        if self._custody.is_full:
            return "too many rows of databases wait to be removed"
        return ""

    def knows(self, database: str) -> bool:
        """Whether the coordinator has told that this database carries."""
        return database in self._databases

    def ask_about(self, database: str) -> None:
        """The coordinator has told of it, if it knows; unless it was asked a moment ago.

        For whoever names one that may have been registered since; or the node has just started.
        """
        if self._relay is None:
            return
        deadline = self._clock() + self._times.ask_s
        with self._monitor:
            while self._is_asking:
                left_s = deadline - self._clock()
                if left_s <= 0:
                    return
                self._monitor.wait(left_s)
            if database in self._databases or self._clock() < self._ask_at:
                return
            self._is_asking = True
        try:
            with limited(self._times.ask_s):
                self._tried(self._get_acquainted)
        finally:
            with self._monitor:
                self._is_asking, self._ask_at = False, self._clock() + self._times.ask_s
                self._monitor.notify_all()

    def look_at(self, database: str) -> None:
        """All that the database has committed by now is put. Raises TRANSIENT if nobody knows."""
        if self._relay is None:
            raise system.TRANSIENT("the node has no coordinator that could say what is carried")
        deadline = self._clock() + self._times.patience_s
        with self._monitor:
            self._wanted += 1
            mine = self._wanted
            self._monitor.notify_all()
            while self._done < mine and not self._is_closed:
                left_s = deadline - self._clock()
                if left_s <= 0:
                    raise system.TRANSIENT("what databases carry is looked for; ask again")
                self._monitor.wait(left_s)
            failure, is_known = self._failure, database in self._databases
        if failure is not None or self._is_closed or not is_known:
            raise system.TRANSIENT(f"what {database[:60]!r} carries is not known now: {failure}")

    # --- The thread

    def _run(self) -> None:
        while True:
            with self._monitor:
                while not self._is_closed and not self._is_due():
                    self._monitor.wait(self._pause_s())
                if self._is_closed:
                    return
            self.look_after()

    def look_after(self) -> None:
        """One round is done, and whoever waited for it knows. Nobody else may be at it."""
        with self._monitor:
            mine = self._wanted
            is_waited_for = mine > self._done
        failure = self._round(is_waited_for)
        with self._monitor:
            self._done, self._failure = max(self._done, mine), failure
            self._monitor.notify_all()

    def _is_due(self) -> bool:
        is_old = bool(self._custody.oldest(self._clock() - self._times.after_s, 1))
        return is_old or self._wanted > self._done or self._clock() >= self._next_look_at

    def _pause_s(self) -> float:
        pause_s = self._next_look_at - self._clock()
        return max(PAUSE_S, min(pause_s, self._times.after_s))

    def _round(self, is_waited_for: bool) -> Exception | None:
        """What was put long enough ago is removed, then rows are looked for, if it is time."""
        failure = self._tried(self._remove)
        if failure is None and not is_waited_for and self._clock() < self._next_look_at:
            return None
        failure = self._looked(0.0 if is_waited_for else self._times.age_s, self._times.call_s)
        self._next_look_at = self._clock() + self._times.look_s
        return failure

    def _tried(self, work: Callable[[], object]) -> Exception | None:
        try:
            work()
        except _FAILURES as failed:
            log.info("what databases carry is not looked after: %s", failed)
            return failed
        return None

    # --- Removing

    def _remove(self) -> None:
        assert self._relay is not None
        before = self._clock() - self._times.after_s
        while found := self._custody.oldest(before, REMOVED_AT_ONCE):
            for database, gtrids in found.items():
                if self._tried(partial(self._remove_some, self._relay, database, gtrids)):
                    self._custody.put_off(gtrids, self._times.again_s)

    def _remove_some(self, relay: Mq_Custody, database: str, gtrids: list[bytes]) -> None:
        # What was put is on disk before its row goes.
        self._custody.force()
        otids = tuple([otid_of(gtrid) for gtrid in gtrids])
        relay.forgetCarried(database, self._custody.secret, otids)
        self._custody.forget(gtrids)

    # --- Looking

    def _looked(self, age_s: float, call_s: float) -> Exception | None:
        """Why not all rows of that age are put by now; None where they are."""
        with limited(call_s):
            failure = self._tried(self._get_acquainted)
            if failure is not None or not self._custody.secret:
                return failure
            for database in self._databases:
                failure = self._tried(partial(self._look_into, database, age_s)) or failure
            return failure

    def _get_acquainted(self) -> None:
        assert self._relay is not None
        self._identity, self._databases = self._relay.getCarriers()

    def _look_into(self, database: str, age_s: float) -> None:
        assert self._relay is not None
        deadline, age_ms = self._clock() + self._times.longest_s, round(age_s * 1000)
        behind = self._stopped_at.pop(database, NULL_OTID)
        failure = None if behind == NULL_OTID else _unfinished()
        # Late answers end with their call: what is looked at here was true a moment ago.
        while rows := self._relay.getCarried(database, self._custody.secret, age_ms, behind):
            for row in rows:
                if self._is_closed or self._clock() >= deadline:
                    # Rows may be removed meanwhile, and nobody waits for ever.
                    self._stopped_at[database] = behind
                    raise _unfinished()
                _check_order(behind, row.otid)
                failure = self._seen(database, row) or failure
                behind = row.otid
        if failure is not None:
            raise failure

    def _seen(self, database: str, row: mqCarried) -> Exception | None:
        """Why the row's puts are not here, nor on their way."""
        gtrid = _gtrid(row.otid)
        if self._custody.has(gtrid):
            return None
        if self._clock() < self._refused_until:
            return system.TRANSIENT("the storage has refused what another row carries")
        try:
            if self._take_over(gtrid, database, row.content):
                log.info("what a database carries is taken over", extra=named(gtrid))
        except NotOurs:
            self._complain(database, gtrid, "this node never wrote it")
        except HeuristicRollback:
            self._complain(database, gtrid, "what it promised was ended by hand, and is not here")
        except _FAILURES as failed:
            # The others need not wait for it; unless all of them would fail, one after the other.
            if isinstance(failed, StorageError):
                self._refused_until = self._clock() + self._times.again_s
            log.error("what a database carries is not put: %s", failed, extra=named(gtrid))
            return failed
        return None

    def _complain(self, database: str, gtrid: bytes, why: str) -> None:
        if gtrid in self._refused:
            return
        self._refused[gtrid] = None
        while len(self._refused) > REFUSED_KEPT:
            del self._refused[next(iter(self._refused))]
        audit.warning(
            "database %s has a row that is left there: %s",
            database,
            why,
            extra=named(gtrid),
        )


def _nobody(gtrid: bytes, database: str, content: bytes) -> bool:
    raise AssertionError("the custodian was not started")


def _unfinished() -> Exception:
    return system.TRANSIENT("there are more rows than can be looked at in one go; ask again")


def _check_order(before: otid_t, otid: otid_t) -> None:
    """Rows come once, and one behind the other: else to look at them might never end."""
    if before != NULL_OTID and _gtrid(otid) <= _gtrid(before):
        raise InvalidValue("rows of a database came twice, or out of order")


def _gtrid(otid: otid_t) -> bytes:
    gtrid = split_otid(otid)[0]
    if len(gtrid) != GTRID_BYTES:
        raise InvalidValue("a row names no transaction")
    return gtrid
