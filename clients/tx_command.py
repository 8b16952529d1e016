"""`oncemq tx`: transactions and branches in doubt, for operators.

Reads the command line, calls `admin.py` and shows. What changes an outcome is asked for again, and
is recorded where it happens. Transactions are asked for at the coordinator, branches at the node
that `--node` names.
"""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from clients.admin import (
    STATES,
    Branches,
    NotOne,
    Transactions,
    TransactionView,
    seconds,
    selected,
)
from clients.terminal import ExitCode, complain, print_plain
from idl import system
from idl.access import Tls, Token, UnsafeSetting
from idl.call import Address
from idl.coordination import TransactionNotFound
from idl.cos import NotPrepared
from idl.mapping import InvalidValue
from idl.mq import BranchNotFound
from idl.orb import NetworkOrb

DEFAULT_COORDINATOR = "127.0.0.1:7410"
TIMEOUT_S = 10.0

EXAMPLES = {
    "oncemq tx": {
        "oncemq tx list": "what is under way at the coordinator",
        "oncemq tx explain NAME": "what one is waiting for",
        "oncemq tx list --node HOST:PORT": "the branches of a node",
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
AtCoordinator = Annotated[
    str,
    typer.Option(
        "--coordinator",
        metavar="HOST:PORT",
        envvar="ONCEMQ_COORDINATOR",
        help="The coordinator to ask.",
    ),
]
AtNode = Annotated[
    str, typer.Option("--node", metavar="HOST:PORT", help="A node, for its branches, instead.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask whether this is meant.")]


def show_list(
    coordinator: AtCoordinator = DEFAULT_COORDINATOR,
    node: AtNode = "",
    state: Annotated[
        str, typer.Option(metavar="STATE", help=f"One of {', '.join(sorted(STATES))}.")
    ] = "",
    older: Annotated[str, typer.Option(metavar="TIME", help="At least so old: 90s, 5m, 2h.")] = "0",
    as_json: AsJson = False,
) -> int:
    """Lists transactions that are not over, the oldest first.

    Those with heuristic outcomes stay until they are forgotten.
    """
    if state and state not in STATES:
        raise typer.BadParameter(f"there is no state {state!r}; there are {', '.join(STATES)}")

    def run(orb: NetworkOrb) -> int:
        views = selected(_source(orb, coordinator, node).every(), state or None, seconds(older))
        if as_json:
            _print_json({"transactions": [asdict(view) for view in views]})
        else:
            _show_views(views, Console())
        return ExitCode.OK

    return _at(run)


def show(
    name: Name,
    coordinator: AtCoordinator = DEFAULT_COORDINATOR,
    node: AtNode = "",
    as_json: AsJson = False,
) -> int:
    """Shows one transaction with its participants."""

    def run(orb: NetworkOrb) -> int:
        view = _source(orb, coordinator, node).one(name)
        if as_json:
            _print_json(asdict(view))
        else:
            _show_one(view, Console())
        return ExitCode.OK

    return _at(run)


def explain(name: Name, coordinator: AtCoordinator = DEFAULT_COORDINATOR, node: AtNode = "") -> int:
    """Says in words what a transaction is waiting for, and what can be done."""

    def run(orb: NetworkOrb) -> int:
        view = _source(orb, coordinator, node).one(name)
        console = Console()
        print_plain(f"{view.name} is {view.status}: {view.explanation}.", console)
        for participant in view.participants:
            tried = f", tried {participant.attempts} times" if participant.attempts else ""
            print_plain(f"  {participant.name} is {participant.state}{tried}", console)
            if participant.trouble:
                print_plain(f"    {participant.trouble}", console)
        if view.time_left_s:
            print_plain(f"It is rolled back by itself in {_time(view.time_left_s)}.", console)
        return ExitCode.OK

    return _at(run)


def commit(name: Name, node: AtNode = "", yes: Yes = False) -> int:
    """Commits a branch in doubt by hand: a heuristic outcome.

    Only where its coordinator will never answer. If that decided otherwise, the transaction is
    then half done, and is reported as such.
    """
    if not node:
        raise typer.BadParameter("only a branch in doubt can be committed: name its --node")
    return _by_hand(name, node, is_commit=True, is_sure=yes)


def rollback(
    name: Name,
    coordinator: AtCoordinator = DEFAULT_COORDINATOR,
    node: AtNode = "",
    yes: Yes = False,
) -> int:
    """Rolls back a transaction that is not decided; with --node, a branch in doubt by hand.

    The latter is a heuristic outcome: if its coordinator decided to commit, the transaction is
    then half done, and is reported as such.
    """
    if node:
        return _by_hand(name, node, is_commit=False, is_sure=yes)

    def run(orb: NetworkOrb) -> int:
        transactions = Transactions(orb, Address.parse(coordinator))
        view = transactions.one(name)
        _confirm(f"Roll back {view.name}, which is {view.status}?", yes)
        outcome = transactions.rollback(view.name)
        print_plain(f"{view.name}: {outcome.status.name.lower().replace('_', ' ')}", Console())
        is_done = outcome.status.name == "ROLLED_BACK"
        return ExitCode.OK if is_done else ExitCode.REFUSED

    return _at(run)


def forget(
    name: Name,
    coordinator: AtCoordinator = DEFAULT_COORDINATOR,
    node: AtNode = "",
    yes: Yes = False,
) -> int:
    """Stops waiting for participants that will never answer; or drops heuristic outcomes.

    Each participant that is given up is recorded as a hazard, and shown until it is forgotten too.
    """

    def run(orb: NetworkOrb) -> int:
        source = _source(orb, coordinator, node)
        view = source.one(name)
        _confirm(f"Forget {view.name}, which is {view.status}?", yes)
        given_up = source.forget(view.name)
        told = "forgotten"
        if given_up:
            told = (
                f"{given_up} participants given up; shown as a hazard until it is forgotten again"
            )
        print_plain(f"{view.name}: {told}", Console())
        return ExitCode.OK

    return _at(run)


COMMANDS: dict[str, Callable[..., int]] = {
    "list": show_list,
    "show": show,
    "explain": explain,
    "commit": commit,
    "rollback": rollback,
    "forget": forget,
}


def _by_hand(name: str, node: str, is_commit: bool, is_sure: bool) -> int:
    def run(orb: NetworkOrb) -> int:
        branches = Branches(orb, Address.parse(node))
        view = branches.one(name)
        word = "Commit" if is_commit else "Roll back"
        _confirm(f"{word} {view.name} by hand, without its coordinator?", is_sure)
        branches.decide(view.name, is_commit)
        done = "committed" if is_commit else "rolled back"
        print_plain(f"{view.name}: {done} by hand; shown until it is forgotten", Console())
        return ExitCode.OK

    return _at(run)


# --- Reaching a server ---------------------------------------------------------------------------


def _at(run: Callable[[NetworkOrb], int]) -> int:
    """Runs the command with an orb, and turns what went wrong into a sentence and a code."""
    try:
        orb = _orb()
        try:
            return run(orb)
        finally:
            orb.close()
    except (InvalidValue, UnsafeSetting) as wrong:
        complain(str(wrong))
        return ExitCode.USAGE
    except (NotOne, TransactionNotFound, BranchNotFound) as missing:
        complain(str(missing))
        return ExitCode.NOT_FOUND
    except (NotPrepared, system.NO_PERMISSION, system.INVALID_TRANSACTION) as refused:
        complain(str(refused))
        return ExitCode.REFUSED
    except system.SystemException as failed:
        complain(str(failed))
        return ExitCode.UNREACHABLE


def _orb() -> NetworkOrb:
    token, authority = (os.environ.get(f"ONCEMQ_{n}") for n in ("TOKEN_FILE", "TLS_AUTHORITY"))
    return NetworkOrb(
        tls=Tls(Path(authority)) if authority else None,
        token=Token.load(Path(token)) if token else None,
        timeout_s=TIMEOUT_S,
    )


def _source(orb: NetworkOrb, coordinator: str, node: str) -> Transactions | Branches:
    if node:
        return Branches(orb, Address.parse(node))
    return Transactions(orb, Address.parse(coordinator))


def _confirm(question: str, is_sure: bool) -> None:
    if is_sure:
        return
    if not sys.stdin.isatty():
        raise typer.BadParameter("nobody is there to be asked: add --yes if this is meant")
    typer.confirm(question, abort=True)


# --- Showing -------------------------------------------------------------------------------------


def _print_json(value: dict[str, Any]) -> None:
    Console().print_json(json.dumps(value), ensure_ascii=True)


def _show_views(views: list[TransactionView], console: Console) -> None:
    if not console.is_terminal:
        for view in views:
            parts = (view.name, view.status, _time(view.age_s), view.owner, view.explanation)
            print_plain("\t".join(parts), console)
        return
    if not views:
        print_plain("Nothing is under way.", console)
        return
    table = Table(box=None, pad_edge=False)
    for column in ("transaction", "state", "age", "owner", "what it is waiting for"):
        table.add_column(column, overflow="fold")
    for view in views:
        table.add_row(view.name, view.status, _time(view.age_s), view.owner, view.explanation)
    console.print(table, markup=False)


def _show_one(view: TransactionView, console: Console) -> None:
    rows = {
        "transaction": view.name,
        "state": view.status,
        "owner": view.owner,
        "key": view.key,
        "age": _time(view.age_s),
        "rolled back in": _time(view.time_left_s) if view.time_left_s else "",
        "waiting for": view.explanation,
    }
    for name, value in rows.items():
        if value:
            print_plain(f"{name:<15} {value}", console)
    for participant in view.participants:
        where = f"{participant.name}: {participant.state}, {participant.resource}"
        print_plain(f"{'participant':<15} {where}", console)
        if participant.trouble:
            print_plain(f"{'':<15} {participant.trouble}", console)


def _time(whole_s: int) -> str:
    minutes, rest_s = divmod(whole_s, 60)
    hours, minutes = divmod(minutes, 60)
    parts = [(hours, "h"), (minutes, "m"), (rest_s, "s")]
    shown = [f"{number}{unit}" for number, unit in parts if number]
    return " ".join(shown[:2]) or "0s"
