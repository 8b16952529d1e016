"""The transaction of the calling thread: CosTransactions' `Current`, in the client.

For those who prefer begin and commit to passing a control along. Calls made while a transaction is
current carry it. Each thread, and each task of an event loop, has its own; a subtransaction is
begun where one is current already, and its parent is current again when it has ended.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import NamedTuple

from idl import system
from idl.call import within
from idl.cos import (
    Control,
    Coordinator,
    Inactive,
    InvalidControl,
    NoTransaction,
    PropagationContext,
    Status,
    SubtransactionsUnavailable,
    Terminator,
    TransactionFactory,
    Unavailable,
)

SUSPENDED_MAX = 1000


class _Entered(NamedTuple):
    """A transaction that this thread is in, and the one that was current before."""

    control: Control
    coordinator: Coordinator
    terminator: Terminator
    before: _Entered | None


_CURRENT: ContextVar[_Entered | None] = ContextVar("oncemq_current", default=None)


class Current:
    """See `idl.cos.Current`."""

    def __init__(self, factory: TransactionFactory) -> None:
        self._factory = factory
        self._timeout_s = 0
        # What was current beneath a suspended subtransaction, to be current again after it.
        self._suspended: dict[Control, _Entered] = {}

    def begin(self) -> None:
        """A transaction is current: a new one, or a subtransaction of the one that was."""
        before = _CURRENT.get()
        if before is None:
            control = self._factory.create(self._timeout_s)
        else:
            try:
                control = before.coordinator.create_subtransaction()
            except Inactive as over:
                raise SubtransactionsUnavailable() from over
        _CURRENT.set(_entered(control, before))

    def commit(self, report_heuristics: bool) -> None:
        """The transaction is committed, and the one before it is current again."""
        self._end().terminator.commit(report_heuristics)

    def rollback(self) -> None:
        """The transaction is rolled back, and the one before it is current again."""
        self._end().terminator.rollback()

    def rollback_only(self) -> None:
        """The transaction can only be rolled back."""
        with contextlib.suppress(Inactive):
            self._entered().coordinator.rollback_only()

    def get_status(self) -> Status:
        """Where the transaction stands."""
        entered = _CURRENT.get()
        return Status.NO_TRANSACTION if entered is None else entered.coordinator.get_status()

    def get_transaction_name(self) -> str:
        """The transaction as operators call it; empty when there is none."""
        entered = _CURRENT.get()
        return "" if entered is None else entered.coordinator.get_transaction_name()

    def set_timeout(self, seconds: int) -> None:
        """Top-level transactions begun from now on have this much time; 0 asks for no limit."""
        self._timeout_s = seconds

    def get_timeout(self) -> int:
        """What `set_timeout` was given last."""
        return self._timeout_s

    def get_control(self) -> Control | None:
        """The control of the current transaction."""
        entered = _CURRENT.get()
        return None if entered is None else entered.control

    def suspend(self) -> Control | None:
        """No transaction is current; what was can be resumed."""
        entered = _CURRENT.get()
        _CURRENT.set(None)
        if entered is None:
            return None
        while len(self._suspended) >= SUSPENDED_MAX:
            self._suspended.pop(next(iter(self._suspended)))
        self._suspended[entered.control] = entered
        return entered.control

    def resume(self, which: Control | None) -> None:
        """This transaction is current, in place of any other; nil leaves none."""
        if which is None:
            _CURRENT.set(None)
        else:
            _CURRENT.set(self._suspended.pop(which, None) or _resumed(which))

    @contextlib.contextmanager
    def carried(self) -> Iterator[PropagationContext | None]:
        """Calls made inside carry the current transaction, if there is one."""
        entered = _CURRENT.get()
        if entered is None:
            yield None
            return
        context = entered.coordinator.get_txcontext()
        with within(context):
            yield context

    def _entered(self) -> _Entered:
        entered = _CURRENT.get()
        if entered is None:
            raise NoTransaction()
        return entered

    def _end(self) -> _Entered:
        entered = self._entered()
        # Before the call: however it ends, this transaction is not current afterwards.
        _CURRENT.set(entered.before)
        return entered


def _entered(control: Control, before: _Entered | None) -> _Entered:
    return _Entered(control, control.get_coordinator(), control.get_terminator(), before)


def _resumed(control: Control) -> _Entered:
    try:
        return _entered(control, None)
    except (Unavailable, system.OBJECT_NOT_EXIST, system.INVALID_TRANSACTION) as over:
        raise InvalidControl() from over
