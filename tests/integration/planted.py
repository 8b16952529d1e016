"""Servers with a bug in them, which the tests with real processes must find.

    python -m tests.integration.planted BUG mqserver --data DIR …
    pytest tests/integration/test_kill_everything.py --kill-planted "prepared forgotten"

The product has no switch for this: the program is patched in the process that runs it.
"""

from __future__ import annotations

import runpy
import secrets
import sys
from collections.abc import Callable
from typing import Any

from coordinator.decision_log import DecisionLog
from idl.orb import frames, network
from mqserver.node import Node
from mqserver.storage.contract import Message
from mqserver.storage.format import RecordKind, unpack_body
from mqserver.transactions.alone import Alone
from mqserver.transactions.decisions import MARK, Decisions
from mqserver.transactions.requests import Branch
from mqserver.transactions.work import Work


def _carry_out_again() -> None:
    """A call without a transaction that is repeated is carried out again."""
    carry_out = Alone.carry_out

    def always(self: Alone, request_id: bytes, owner: str, act: Callable[[bytes], Any]) -> Any:
        return carry_out(self, secrets.token_bytes(16), owner, act)

    _patch(Alone, "carry_out", always)


def _forget_prepared() -> None:
    """A restart rolls back what was prepared."""
    start = Node.start

    def forgetting(self: Node) -> None:
        for info in self.storage.branches():
            self.storage.rollback(info.branch)
        start(self)

    _patch(Node, "start", forgetting)


def _let_late_work_in() -> None:
    """A branch whose first requests were lost in a restart goes on as if nothing had happened."""
    begin = Work._begin

    def beginning(self: Work, branch: bytes, owner: str, number: int) -> Branch:
        found = begin(self, branch, owner, 1)
        found.number = number - 1
        return found

    _patch(Work, "_begin", beginning)


def _forget_decisions() -> None:
    """A restart does not see what was decided, neither of a node nor of the coordinator."""
    know = Decisions._know

    def reading(self: DecisionLog) -> None:
        for record in self._log.records(self._log.control.restart_lsn):
            if record.kind is not RecordKind.DECISION:
                self.ledger.apply(record.kind, unpack_body(record.body, "a record")[0])

    def knowing(self: Decisions, message: Message) -> None:
        if message.group != MARK:
            know(self, message)

    _patch(DecisionLog, "_read", reading)
    _patch(Decisions, "_know", knowing)
    _patch(Decisions, "_was_committed", lambda self, gtrid: False)


def _live_for_ever() -> None:
    """A server does not tell calls that are for it from those for the one before it."""
    _patch(network, "_new_life", lambda: bytes(frames.LIFE_BYTES))


def _tell_of_all() -> None:
    """A node where a transaction has only looked says of all of it how that has ended."""
    _patch(Work, "_told_by", Work._outcome)


def _patch(where: Any, name: str, what: Any) -> None:
    assert hasattr(where, name), f"{where} has no {name} any more"
    setattr(where, name, what)


BUGS: dict[str, Callable[[], None]] = {
    "call repeated": _carry_out_again,
    "prepared forgotten": _forget_prepared,
    "late work": _let_late_work_in,
    "decision forgotten": _forget_decisions,
    "one life": _live_for_ever,
    "looking tells": _tell_of_all,
}


def main() -> None:
    """Runs the program with the bug in it, as if it had been started itself."""
    bug, program = sys.argv[1:3]
    BUGS[bug]()
    sys.argv[1:3] = []
    runpy.run_module(program, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
