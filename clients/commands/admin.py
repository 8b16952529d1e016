"""`oncemq admin`: the switches of a node, for operators: the client of `Mq_Service`.

They work while the node's queues are switched off. What stops a server is asked for again.
"""

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console

from clients.admin import Branches, Queues, Switches
from clients.commands.options import AsJson, JsonForTable, Yes
from clients.commands.reaching import DEFAULT_TIMEOUT_S, Place, Reach, at_node
from clients.commands.terminal import (
    ExitCode,
    complain,
    confirm,
    duration,
    print_json,
    print_plain,
    show_pairs,
    show_table,
)
from clients.store_lines import counted
from idl import system

STOPPED = (system.COMM_FAILURE, system.TIMEOUT, system.TRANSIENT, system.OBJECT_NOT_EXIST)
PAUSE_S = 0.1

EXAMPLES = {
    "oncemq admin": {
        "oncemq admin status": "is the node well, and what does it do?",
        "oncemq admin consumers": "who has messages reserved, and for how long?",
        "oncemq admin shutdown": "stop it in good order",
    },
    "oncemq admin status": {
        "oncemq admin status": "the node, its queues, its transactions",
        "oncemq admin status --url mq://HOST:PORT": "another node",
        "oncemq admin status --json": "one object, for scripts",
    },
    "oncemq admin enable": {"oncemq admin enable": "all queues work again"},
    "oncemq admin disable": {"oncemq admin disable": "puts and gets are refused, everywhere"},
    "oncemq admin consumers": {
        "oncemq admin consumers": "the consumers of a node",
        "oncemq admin consumers --json": "one object, for scripts",
    },
    "oncemq admin drop-consumer": {
        "oncemq admin drop-consumer etl": "give back what it had reserved",
        "oncemq admin drop-consumer etl --yes": "does not ask",
    },
    "oncemq admin shutdown": {
        "oncemq admin shutdown": "asks, then waits until it has stopped",
        "oncemq admin shutdown --yes": "does not ask",
    },
}


def status(reach: Reach, as_json: AsJson = False) -> int:
    """Shows what a node is, what it holds and what is under way there."""

    def run(place: Place) -> int:
        found = _found(place)
        if as_json:
            print_json(found)
        else:
            show_pairs(_pairs(found))
        return ExitCode.OK

    return at_node(reach, run)


def enable(reach: Reach) -> int:
    """Switches a node on: puts and gets work, where their queue is on too."""
    return _switch(reach, is_enabled=True)


def disable(reach: Reach) -> int:
    """Switches a node off: puts and gets are refused, what was prepared can be decided."""
    return _switch(reach, is_enabled=False)


def consumers(reach: Reach, as_json: JsonForTable = False) -> int:
    """Lists who has reserved messages, how many, and for how long.

    Reservations do not end by themselves: what they hold may be processed already.
    """

    def run(place: Place) -> int:
        found = Switches(place.orb, place.address).consumers()
        if as_json:
            print_json({"consumers": [asdict(view) for view in found]})
            return ExitCode.OK
        columns = ("consumer", "queue", ">reserved", ">for")
        rows = [
            (
                view.name,
                view.queue,
                str(view.reserved),
                duration(view.age_s) if view.reserved else "",
            )
            for view in found
        ]
        show_table(columns, rows, "Nobody has reserved anything.")
        return ExitCode.OK

    return at_node(reach, run)


def drop_consumer(
    consumer: Annotated[str, typer.Argument(metavar="CONSUMER", help="The name of a consumer.")],
    reach: Reach,
    yes: Yes = False,
) -> int:
    """Gives back what a consumer has reserved, and forgets it.

    For one that will not come back. What it has processed and not yet acknowledged is delivered
    again; the consumer itself is refused if it does come back.
    """

    def run(place: Place) -> int:
        confirm(f"Drop consumer {consumer}? What it was working on is delivered again.", yes)
        found = Switches(place.orb, place.address).drop_consumer(consumer)
        given_back = counted(sum(view.reserved for view in found), "message")
        print_plain(f"Consumer {consumer} is dropped; {given_back} given back.", Console())
        return ExitCode.OK

    return at_node(reach, run)


def shutdown(reach: Reach, yes: Yes = False) -> int:
    """Stops a node in good order.

    Running transactions are rolled back, prepared ones are kept, and nothing is lost. Returns when
    the node has stopped.
    """

    def run(place: Place) -> int:
        switches = Switches(place.orb, place.address)
        name = switches.node().name
        confirm(f"Stop node {name} at {place.address}?", yes)
        switches.shut_down()
        if _has_stopped(switches, reach.timeout_s or DEFAULT_TIMEOUT_S):
            print_plain(f"Node {name} has stopped.", Console())
            return ExitCode.OK
        complain(f"node {name} was told to stop, and still answers: wait, or look at its log")
        return ExitCode.PROBLEM

    return at_node(reach, run)


COMMANDS: dict[str, Callable[..., int]] = {
    "status": status,
    "enable": enable,
    "disable": disable,
    "consumers": consumers,
    "drop-consumer": drop_consumer,
    "shutdown": shutdown,
}


def _switch(reach: Reach, is_enabled: bool) -> int:
    def run(place: Place) -> int:
        switches = Switches(place.orb, place.address)
        switches.enable(is_enabled)
        told = "on" if is_enabled else "off: puts and gets are refused, all messages are kept"
        print_plain(f"Node {switches.node().name} is {told}.", Console())
        return ExitCode.OK

    return at_node(reach, run)


def _has_stopped(switches: Switches, patience_s: float) -> bool:
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        try:
            switches.is_enabled()
        except STOPPED:
            return True
        time.sleep(PAUSE_S)
    return False


def _found(place: Place) -> dict[str, Any]:
    """What is known of a node, for scripts; a promise, see `docs/guide/command.md`."""
    switches = Switches(place.orb, place.address)
    node = switches.node()
    queues = Queues(place.orb, place.address).every()
    branches = Branches(place.orb, place.address).every()
    in_doubt = [branch for branch in branches if branch.status == "prepared"]
    return {
        "node": node.name,
        "address": str(place.address),
        "coordinator": node.coordinator,
        "enabled": switches.is_enabled(),
        "message_bytes_max": node.messageBytesMax,
        "queues": [view.fields() for view in queues],
        "transactions": {
            "active": sum(branch.status == "active" for branch in branches),
            "in_doubt": len(in_doubt),
            "oldest_in_doubt_s": max((branch.age_s for branch in in_doubt), default=0),
        },
        "consumers": [asdict(view) for view in switches.consumers()],
        "status": switches.status(),
    }


def _pairs(found: dict[str, Any]) -> list[tuple[str, str]]:
    """The same for people."""
    queues = found["queues"]
    messages = sum(queue["messages"] for queue in queues)
    off = [queue["name"] for queue in queues if not queue["enabled"]]
    transactions = found["transactions"]
    doubt = f"{transactions['in_doubt']} in doubt"
    if transactions["in_doubt"]:
        doubt += f", the oldest for {duration(transactions['oldest_in_doubt_s'])}"
    rows = [
        ("node", f"{found['node']} at {found['address']}"),
        ("coordinator", found["coordinator"] or "none"),
        ("state", "on" if found["enabled"] else "off: puts and gets are refused"),
        ("queues", f"{counted(len(queues), 'queue')}, {counted(messages, 'message')}"),
        ("transactions", f"{transactions['active']} at work, {doubt}"),
    ]
    rows += [("switched off", ", ".join(off))] if off else []
    rows += [
        ("consumer", f"{each['name']}: {counted(each['reserved'], 'message')} of {each['queue']}")
        for each in found["consumers"]
    ]
    return rows
