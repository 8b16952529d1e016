"""What was in a queue makes room for what is written: `.mode("overwrite")`, where it was asked for.

Everything that can be got from the queue when the write commits is locked then, in branches of the
write's own transaction: it is gone if and only if the new rows are there. What another transaction
holds at that moment is not seen, and what is put later stays. It knows neither rows nor votes.
"""

from __future__ import annotations

import contextlib

from clients import structs
from clients.connection import Connection
from clients.errors import RAISED, OnceMQError, RolledBack
from clients.nodes import Node
from clients.spark.errors import OptionError
from clients.spark.options import Options
from clients.spark.sharing import PreparedBranch
from clients.spark.source import EVERYTHING, LIST_MESSAGES_MAX
from idl.call import limited
from idl.cos import Vote
from idl.proxies import new_request_id

ROLLBACK_S = 5.0
RANDOM_DIGITS = 6


def check_overwriting(options: Options, is_overwriting: bool) -> None:
    """Raises unless the mode of the write and its option `overwrite` say the same."""
    if is_overwriting and not options.overwrite:
        raise OptionError(
            '.mode("overwrite") removes what is in the queue, also what others wait for: if that '
            'is meant, say .option("overwrite", "true") as well; .mode("append") only adds messages'
        )
    if options.overwrite and not is_overwriting:
        raise OptionError('the option "overwrite" needs .mode("overwrite") beside it')


def take_out(connection: Connection, gtrid: bytes, queue: str) -> list[PreparedBranch]:
    """What can be got from the queue now is removed if the transaction commits with these.

    Raises an `OnceMQError`; what was locked is given back with the transaction then.
    """
    node = connection.node()
    # Whoever commits once more, in another process, must not meet the branches of this one.
    chance = new_request_id().hex()[:RANDOM_DIGITS]
    taken: list[PreparedBranch] = []
    while True:
        name = f"o{chance}.{len(taken) + 1}"
        branch = structs.branch(gtrid, name, None)
        try:
            size = node.ask(node.calls.lockMany, branch, name, queue, EVERYTHING, LIST_MESSAGES_MAX)
            if size:
                _prepare(connection, node, gtrid, name)
        except BaseException:
            _give_back(node, gtrid, name)
            raise
        if not size:
            _give_back(node, gtrid, name)
            return taken
        taken.append(PreparedBranch(str(node.address), name))


def _prepare(connection: Connection, node: Node, gtrid: bytes, name: str) -> None:
    # At once: what is prepared asks for its end by itself, should this process die.
    recovery = connection.deciding().recovery_of(gtrid, name)
    branch = structs.branch(gtrid, name, recovery)
    if node.ask(node.calls.prepareBranch, branch, 0) is not Vote.COMMIT:
        raise RolledBack(f"{node.where} has lost what was locked there for the transaction")


def _give_back(node: Node, gtrid: bytes, name: str) -> None:
    """The node was told; where that fails, it will notice."""
    with contextlib.suppress(OnceMQError, *RAISED), limited(ROLLBACK_S):
        node.calls.rollbackBranch(structs.branch(gtrid, name, None))
