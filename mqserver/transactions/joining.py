"""Joining a transaction that the caller names by its Control, or by the context of its call.

The first call in a transaction registers one resource with the transaction's coordinator; the next
ones find it again. The branch's name holds this node and this start of it: after a restart the
resource of before has lost its work, votes against, and is not mixed up with a new one. It also
holds where the coordinator is, so that nobody who pretends to coordinate a transaction gets at the
branch of the one who does.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable

from idl import system
from idl.call import Orb, Reference, limited
from idl.cos import Control, Coordinator, Inactive, PropagationContext, Unavailable
from idl.mapping import InvalidValue
from idl.otids import split_otid
from mqserver.transactions.requests import named
from mqserver.transactions.resource import Resources, branch_id

log = logging.getLogger("oncemq.node")

PREFIX = "node."
JOINED_KEPT = 10_000
CALL_S = 10.0

# Of these the caller is told as they are: the coordinator has said them of the transaction.
_SAID = (
    system.TRANSACTION_ROLLEDBACK,
    system.INVALID_TRANSACTION,
    system.NO_PERMISSION,
    system.IMP_LIMIT,
)


class _Joined:
    """A transaction that was joined, or is about to be."""

    __slots__ = ("branch", "lock")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.branch = b""


class Joining:
    """The transactions of which this node was told. May be used from any thread."""

    def __init__(
        self, orb: Orb, resources: Resources, node: str, start: bytes, call_s: float = CALL_S
    ) -> None:
        self._orb = orb
        self._resources = resources
        self._node = node.encode()
        self._start = start
        self._call_s = call_s
        self._lock = threading.Lock()
        # By the reference of a control or of a coordinator.
        self._joined: OrderedDict[str, _Joined] = OrderedDict()

    def branch_of(
        self,
        control: Control | None,
        context: PropagationContext | None,
        begin: Callable[[bytes], None],
    ) -> bytes | None:
        """The branch in which the call works; None without a transaction.

        `begin` is called with a branch that is about to be registered: from then on the storage
        knows it, so that it can vote.
        """
        if control is not None:
            reference = self._orb.reference_of(control)
        elif context is not None and context.current.coord is not None:
            reference = self._orb.reference_of(context.current.coord)
        elif context is not None:
            raise system.INVALID_TRANSACTION("the call's transaction has no coordinator")
        else:
            return None
        joined = self._entry(reference)
        with joined.lock:
            if not joined.branch:
                joined.branch = self._join(control, context, begin)
            return joined.branch

    def left(self, branch: bytes) -> None:
        """The branch is over: whoever comes with its transaction again asks the coordinator."""
        with self._lock:
            for reference in [r for r, each in self._joined.items() if each.branch == branch]:
                del self._joined[reference]

    def _entry(self, reference: str) -> _Joined:
        known = self._joined.get(reference)
        if known is not None:
            return known
        with self._lock:
            known = self._joined.setdefault(reference, _Joined())
            while len(self._joined) > JOINED_KEPT:
                # Whoever still works in it registers again, which does no harm.
                self._joined.popitem(last=False)
            return known

    def _join(
        self,
        control: Control | None,
        context: PropagationContext | None,
        begin: Callable[[bytes], None],
    ) -> bytes:
        branch = b""
        try:
            with limited(self._call_s):
                coordinator = self._coordinator(control, context)
                # Asked of the coordinator itself: what the caller says could be another's.
                gtrid, _ = split_otid(coordinator.get_txcontext().current.otid)
                name = self._name(coordinator)
                begin(branch_id(gtrid, name))
                branch = branch_id(gtrid, name)
                resource = self._resources.resource_of(gtrid, name, is_lazy=False)
                recovery = coordinator.register_resource(resource)
        except (Unavailable, Inactive, InvalidValue, system.SystemException) as failed:
            if branch:
                # Nobody will speak for it; should it be registered all the same, it votes against.
                self._resources.storage.rollback(branch)
            raise _told(failed) from failed
        self._resources.registered(branch, recovery)
        log.debug("joined a transaction", extra=named(branch))
        return branch

    def _coordinator(
        self, control: Control | None, context: PropagationContext | None
    ) -> Coordinator:
        if control is not None:
            return control.get_coordinator()
        assert context is not None
        assert context.current.coord is not None
        return context.current.coord

    def _name(self, coordinator: Coordinator) -> str:
        where = str(Reference.parse(self._orb.reference_of(coordinator)).address).encode()
        made = hashlib.blake2b(digest_size=16)
        for part in (self._node, self._start, where):
            made.update(len(part).to_bytes(4) + part)
        return PREFIX + made.hexdigest()


def _told(failed: Exception) -> system.SystemException:
    """What the coordinator said of the transaction, or that it cannot be reached."""
    if isinstance(failed, _SAID):
        return failed
    if isinstance(failed, system.SystemException):
        return system.TRANSACTION_UNAVAILABLE(
            f"the transaction's coordinator does not answer: {failed.reason}"
        )
    return system.INVALID_TRANSACTION("the transaction is over, or is being ended")
