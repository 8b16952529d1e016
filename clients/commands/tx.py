"""`oncemq tx`: transactions and branches in doubt, for operators.

Reads the command line, calls `admin.py` and shows. What changes an outcome is asked for again, and
is recorded where it happens. Unless one of them is named, both are asked: the node, and the
coordinator that it works with, and their views are laid over each other.
"""

from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console

from clients.admin import (
    STATES,
    Branches,
    Switches,
    Transactions,
    TransactionView,
    merged,
    one_of,
    seconds,
    selected,
)
from clients.commands.options import JsonForTable, Yes, coordinator_option
from clients.commands.reaching import Reach, answered, node_address, orb_of, settled
from clients.commands.terminal import (
    ExitCode,
    confirm,
    duration,
    note,
    print_json,
    print_plain,
    show_pairs,
    show_table,
)
from idl import system
from idl.call import Address, Orb
from idl.settings import Settings

UNREACHED = (system.COMM_FAILURE, system.TIMEOUT, system.TRANSIENT)

EXAMPLES = {
    "oncemq tx": {
        "oncemq tx list": "what is under way",
        "oncemq tx explain NAME": "what one is waiting for",
        "oncemq tx list --node HOST:PORT": "the branches of a node alone",
    },
    "oncemq tx list": {
        "oncemq tx list": "all that are not over",
        "oncemq tx list --state committing": "decided, and not yet carried out everywhere",
        "oncemq tx list --state prepared --older 5m --node HOST:PORT": "in doubt for long",
        "oncemq tx list --json": "one object, for scripts",
    },
    "oncemq tx show": {"oncemq tx show 3f2a": "the one whose name begins so"},
    "oncemq tx explain": {"oncemq tx explain 3f2a": "what it waits for, in words"},
    "oncemq tx commit": {
        "oncemq tx commit 3f2a --node HOST:PORT": "end a branch in doubt, by hand"
    },
    "oncemq tx rollback": {
        "oncemq tx rollback 3f2a": "one that is not decided",
        "oncemq tx rollback 3f2a --node HOST:PORT": "end a branch in doubt, by hand",
    },
    "oncemq tx forget": {
        "oncemq tx forget 3f2a": "stop waiting for who will never answer",
        "oncemq tx forget 3f2a --node HOST:PORT": "a branch that was ended by hand",
    },
}

Name = Annotated[str, typer.Argument(metavar="NAME", help="A transaction, or how its name begins.")]
AtCoordinator = Annotated[str | None, coordinator_option("Ask this coordinator alone.")]
AtNode = Annotated[
    str | None, typer.Option("--node", metavar="HOST:PORT", help="Ask this node alone.")
]


def show_list(
    reach: Reach,
    coordinator: AtCoordinator = None,
    node: AtNode = None,
    state: Annotated[
        str, typer.Option(metavar="STATE", help=f"One of {', '.join(sorted(STATES))}.")
    ] = "",
    older: Annotated[str, typer.Option(metavar="TIME", help="At least so old: 90s, 5m, 2h.")] = "0",
    as_json: JsonForTable = False,
) -> int:
    """Lists transactions that are not over, the oldest first.

    Those with heuristic outcomes stay until they are forgotten.
    """
    if state and state not in STATES:
        raise typer.BadParameter(f"there is no state {state!r}; there are {', '.join(STATES)}")

    def run(views: Views) -> int:
        found = selected(views.every(), state or None, seconds(older))
        if as_json:
            print_json({"transactions": [asdict(view) for view in found]})
        else:
            columns = ("transaction", "state", "age", "owner", "what it is waiting for")
            rows = [row for view in found for row in _rows(view)]
            show_table(columns, rows, "Nothing is under way.")
        return ExitCode.OK

    return _at(run, reach, coordinator, node)


def show(
    name: Name,
    reach: Reach,
    coordinator: AtCoordinator = None,
    node: AtNode = None,
    as_json: JsonForTable = False,
) -> int:
    """Shows one transaction with its participants and branches."""

    def run(views: Views) -> int:
        view = views.one(name)
        if as_json:
            print_json(asdict(view))
        else:
            show_pairs(_pairs(view))
        return ExitCode.OK

    return _at(run, reach, coordinator, node)


def explain(
    name: Name, reach: Reach, coordinator: AtCoordinator = None, node: AtNode = None
) -> int:
    """Says in words what a transaction is waiting for, and what can be done."""

    def run(views: Views) -> int:
        for line in _explanation(views.one(name)):
            print_plain(line, Console())
        return ExitCode.OK

    return _at(run, reach, coordinator, node)


def commit(name: Name, reach: Reach, node: AtNode = None, yes: Yes = False) -> int:
    """Commits a branch in doubt by hand: a heuristic outcome.

    Only where its coordinator will never answer. If that decided otherwise, the transaction is
    then half done, and is reported as such.
    """
    if not node:
        raise typer.BadParameter("only a branch in doubt can be committed: name its --node")
    return _by_hand(name, reach, node, is_commit=True, is_sure=yes)


def rollback(
    name: Name,
    reach: Reach,
    coordinator: AtCoordinator = None,
    node: AtNode = None,
    yes: Yes = False,
) -> int:
    """Rolls back a transaction that is not decided; with --node, a branch in doubt by hand.

    The latter is a heuristic outcome: if its coordinator decided to commit, the transaction is
    then half done, and is reported as such.
    """
    if node:
        return _by_hand(name, reach, node, is_commit=False, is_sure=yes)

    def run(views: Views) -> int:
        transactions = views.at_coordinator()
        view = transactions.one(name)
        confirm(f"Roll back {view.name}, which is {view.status}?", yes)
        outcome = transactions.rollback(view.name)
        print_plain(f"{view.name}: {outcome.status.name.lower().replace('_', ' ')}", Console())
        is_done = outcome.status.name == "ROLLED_BACK"
        return ExitCode.OK if is_done else ExitCode.REFUSED

    return _at(run, reach, coordinator, node)


def forget(
    name: Name,
    reach: Reach,
    coordinator: AtCoordinator = None,
    node: AtNode = None,
    yes: Yes = False,
) -> int:
    """Stops waiting for participants that will never answer; or drops heuristic outcomes.

    Each participant that is given up is recorded as a hazard, and shown until it is forgotten too.
    """

    def run(views: Views) -> int:
        source = views.at_node() if node else views.at_coordinator()
        view = source.one(name)
        confirm(f"Forget {view.name}, which is {view.status}?", yes)
        given_up = source.forget(view.name)
        told = "forgotten"
        if given_up:
            told = (
                f"{given_up} participants given up; shown as a hazard until it is forgotten again"
            )
        print_plain(f"{view.name}: {told}", Console())
        return ExitCode.OK

    return _at(run, reach, coordinator, node)


COMMANDS: dict[str, Callable[..., int]] = {
    "list": show_list,
    "show": show,
    "explain": explain,
    "commit": commit,
    "rollback": rollback,
    "forget": forget,
}


def _by_hand(name: str, reach: Reach, node: str, is_commit: bool, is_sure: bool) -> int:
    def run(views: Views) -> int:
        branches = views.at_node()
        view = branches.one(name)
        word = "Commit" if is_commit else "Roll back"
        confirm(f"{word} {view.name} by hand, without its coordinator?", is_sure)
        branches.decide(view.name, is_commit)
        done = "committed" if is_commit else "rolled back"
        print_plain(f"{view.name}: {done} by hand; shown until it is forgotten", Console())
        return ExitCode.OK

    return _at(run, reach, None, node)


# --- Asking the servers --------------------------------------------------------------------------


class Views:
    """What the coordinator and the node say, as far as they are asked."""

    def __init__(self, transactions: Transactions | None, branches: Branches | None) -> None:
        self._transactions = transactions
        self._branches = branches

    def every(self) -> list[TransactionView]:
        """All that is known; transactions have their branches with them."""
        branches = [] if self._branches is None else self._branches.every()
        if self._transactions is None:
            return branches
        try:
            return merged(self._transactions.every(), branches)
        except UNREACHED as away:
            if self._branches is None:
                raise
            note(f"Only the node answers; of the coordinator: {away}")
            return branches

    def one(self, name: str) -> TransactionView:
        """The one of this name, or that begins so."""
        return one_of(name, self.every())

    def at_coordinator(self) -> Transactions:
        """The coordinator's alone."""
        if self._transactions is None:
            raise typer.BadParameter("the node works with no coordinator: name a --coordinator")
        return self._transactions

    def at_node(self) -> Branches:
        """The node's alone."""
        assert self._branches is not None
        return self._branches


def _at(
    run: Callable[[Views], int], reach: Reach, coordinator: str | None, node: str | None
) -> int:
    """Runs the command with whoever is to be asked; see `answered`."""

    def go() -> int:
        settings = settled(reach, coordinator)
        with orb_of(settings) as orb:
            if node:
                return run(Views(None, Branches(orb, Address.parse(node))))
            if coordinator:
                return run(Views(Transactions(orb, settings["client.coordinator"]), None))
            return run(_both(orb, settings))

    return answered(go)


def _both(orb: Orb, settings: Settings) -> Views:
    """The node, and the coordinator: the one that was set, or that the node works with."""
    address = node_address(settings)
    named: Address | None = settings["client.coordinator"]
    is_set = settings.origin("client.coordinator") != "default"
    try:
        recommended = Switches(orb, address).node().coordinator
    except UNREACHED as away:
        assert named is not None
        transactions = Transactions(orb, named)
        # Where this one does not answer either, that is told instead.
        transactions.every()
        note(f"Only the coordinator answers; of the node: {away}")
        return Views(transactions, None)
    if not is_set:
        named = Address.parse(recommended) if recommended else None
    return Views(None if named is None else Transactions(orb, named), Branches(orb, address))


# --- Showing -------------------------------------------------------------------------------------


def _rows(view: TransactionView) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [
        (view.name, view.status, duration(view.age_s), view.owner, view.explanation)
    ]
    for branch in view.branches:
        name = f"  {branch.name.partition('/')[2]}"
        rows.append((name, branch.status, duration(branch.age_s), branch.owner, branch.explanation))
    return rows


def _pairs(view: TransactionView) -> list[tuple[str, str]]:
    rows = [
        ("transaction", view.name),
        ("state", view.status),
        ("owner", view.owner),
        ("key", view.key),
        ("age", duration(view.age_s)),
        ("rolled back in", duration(view.time_left_s) if view.time_left_s else ""),
        ("waiting for", view.explanation),
    ]
    for participant in view.participants:
        where = f"{participant.name}: {participant.state}, {participant.resource}"
        rows += [("participant", where), ("", participant.trouble)]
    for branch in view.branches:
        name = branch.name.partition("/")[2]
        rows.append(("branch", f"{name}: {branch.status}, {branch.explanation}"))
    return [(name, value) for name, value in rows if value]


def _explanation(view: TransactionView) -> list[str]:
    lines = [f"{view.name} is {view.status}: {view.explanation}."]
    for participant in view.participants:
        tried = f", tried {participant.attempts} times" if participant.attempts else ""
        lines.append(f"  {participant.name} is {participant.state}{tried}")
        lines += [f"    {participant.trouble}"] if participant.trouble else []
    for branch in view.branches:
        name = branch.name.partition("/")[2]
        lines.append(f"  {name} at the node is {branch.status}: {branch.explanation}")
    if view.time_left_s:
        lines.append(f"It is rolled back by itself in {duration(view.time_left_s)}.")
    return lines
