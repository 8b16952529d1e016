"""`oncemq queue`: the queues of a node, as an operator makes, watches and empties them.

Reads the command line, asks the node's administration and shows what it says. What destroys
messages is asked for again.
"""

from collections.abc import Callable
from typing import Annotated

import typer
from rich.console import Console

from clients.admin import Queues, QueueView
from clients.commands.options import JsonForTable, QueueName, Yes
from clients.commands.reaching import Place, Reach, at_node
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

EXAMPLES = {
    "oncemq queue": {
        "oncemq queue list": "all queues and what they hold",
        "oncemq queue create orders": "a queue, before its first message",
        "oncemq queue purge orders": "throw away what it holds",
    },
    "oncemq queue list": {
        "oncemq queue list": "all queues of the node",
        "oncemq queue list --json": "one object, for scripts",
        "oncemq queue list | cut -f 1": "only the names",
    },
    "oncemq queue create": {
        "oncemq queue create orders": "in the order of arrival, without limits",
        "oncemq queue create jobs --prioritized": "the highest priority goes first",
        "oncemq queue create log --messages-max 100000": "a put beyond that is refused",
    },
    "oncemq queue change": {
        "oncemq queue change orders --prioritized": "the highest priority goes first",
        "oncemq queue change orders --messages-max 0": "no limit any more",
    },
    "oncemq queue delete": {
        "oncemq queue delete orders": "a queue that is empty",
        "oncemq queue delete orders --purge --yes": "with all that it holds, unasked",
    },
    "oncemq queue status": {
        "oncemq queue status orders": "settings and contents of one queue",
        "oncemq queue status orders --json": "one object, for scripts",
    },
    "oncemq queue enable": {"oncemq queue enable orders": "puts and gets work again"},
    "oncemq queue disable": {"oncemq queue disable orders": "puts and gets are refused"},
    "oncemq queue purge": {
        "oncemq queue purge orders": "asks, and says how many there were",
        "oncemq queue purge orders --yes": "does not ask",
    },
}

MessagesMax = typer.Option(
    "--messages-max", metavar="N", min=0, help="The most messages it holds; 0 is no limit."
)
BytesMax = typer.Option(
    "--bytes-max", metavar="N", min=0, help="The most bytes it holds; 0 is no limit."
)


def show_list(reach: Reach, as_json: JsonForTable = False) -> int:
    """Lists the queues of a node and what they hold."""

    def run(place: Place) -> int:
        found = Queues(place.orb, place.address).every()
        if as_json:
            print_json({"queues": [view.fields() for view in found]})
            return ExitCode.OK
        columns = ("queue", ">messages", ">held", ">bytes", ">oldest", "state")
        show_table(columns, [_row(view) for view in found], "There are no queues yet.")
        return ExitCode.OK

    return at_node(reach, run)


def create(
    queue: QueueName,
    reach: Reach,
    prioritized: Annotated[
        bool, typer.Option("--prioritized", help="The highest priority goes first.")
    ] = False,
    messages_max: Annotated[int, MessagesMax] = 0,
    bytes_max: Annotated[int, BytesMax] = 0,
    as_json: JsonForTable = False,
) -> int:
    """Makes an empty queue.

    A put makes one too, unless the node forbids it; this is for one with settings of its own.
    """

    def run(place: Place) -> int:
        queues = Queues(place.orb, place.address)
        queues.create(queue, prioritized, messages_max, bytes_max)
        return _done(queues.one(queue), f"There is a queue {queue}.", as_json)

    return at_node(reach, run)


def change(
    queue: QueueName,
    reach: Reach,
    prioritized: Annotated[
        bool | None,
        typer.Option("--prioritized/--by-time", help="The highest priority or the oldest first."),
    ] = None,
    messages_max: Annotated[int | None, MessagesMax] = None,
    bytes_max: Annotated[int | None, BytesMax] = None,
    as_json: JsonForTable = False,
) -> int:
    """Changes the settings of a queue; those that are not named stay.

    Messages that a new limit would have refused are kept.
    """

    def run(place: Place) -> int:
        queues = Queues(place.orb, place.address)
        view = queues.change(
            queue, prioritized=prioritized, messages_max=messages_max, bytes_max=bytes_max
        )
        return _done(view, f"{queue} is changed.", as_json)

    return at_node(reach, run)


def delete(
    queue: QueueName,
    reach: Reach,
    purge: Annotated[bool, typer.Option("--purge", help="Also if it holds messages.")] = False,
    yes: Yes = False,
) -> int:
    """Deletes a queue. One that holds messages is kept, unless --purge says otherwise."""

    def run(place: Place) -> int:
        queues = Queues(place.orb, place.address)
        view = queues.one(queue)
        if view.messages and not purge:
            held = counted(view.messages, "message")
            complain(f"{queue} holds {held} and was kept: get them, or add --purge")
            return ExitCode.REFUSED
        _confirm_loss("Delete", view, yes)
        removed = queues.purge(queue) if purge else 0
        queues.delete(queue)
        lost = f", with {counted(removed, 'message')}" if removed else ""
        print_plain(f"{queue} is deleted{lost}.", Console())
        return ExitCode.OK

    return at_node(reach, run)


def status(queue: QueueName, reach: Reach, as_json: JsonForTable = False) -> int:
    """Shows the settings and the contents of one queue."""

    def run(place: Place) -> int:
        view = Queues(place.orb, place.address).one(queue)
        if as_json:
            print_json(view.fields())
        else:
            show_pairs(_pairs(view))
        return ExitCode.OK

    return at_node(reach, run)


def enable(queue: QueueName, reach: Reach) -> int:
    """Switches a queue on."""
    return _switch(queue, reach, is_enabled=True)


def disable(queue: QueueName, reach: Reach) -> int:
    """Switches a queue off: puts and gets are refused, and its messages stay."""
    return _switch(queue, reach, is_enabled=False)


def purge(queue: QueueName, reach: Reach, yes: Yes = False, as_json: JsonForTable = False) -> int:
    """Throws away every message that no transaction holds.

    Says how many they were. What a transaction holds stays, and is in the queue again if it rolls
    back.
    """

    def run(place: Place) -> int:
        queues = Queues(place.orb, place.address)
        _confirm_loss("Purge", queues.one(queue), yes)
        removed = queues.purge(queue)
        if as_json:
            print_json({"queue": queue, "removed": removed})
        else:
            gone = "message is" if removed == 1 else "messages are"
            print_plain(f"{removed:,} {gone} gone from {queue}.", Console())
        return ExitCode.OK

    return at_node(reach, run)


COMMANDS: dict[str, Callable[..., int]] = {
    "list": show_list,
    "create": create,
    "change": change,
    "delete": delete,
    "status": status,
    "enable": enable,
    "disable": disable,
    "purge": purge,
}


def _switch(queue: str, reach: Reach, is_enabled: bool) -> int:
    def run(place: Place) -> int:
        Queues(place.orb, place.address).change(queue, enabled=is_enabled)
        told = "on" if is_enabled else "off: puts and gets are refused, its messages are kept"
        print_plain(f"{queue} is {told}.", Console())
        return ExitCode.OK

    return at_node(reach, run)


def _confirm_loss(word: str, view: QueueView, is_sure: bool) -> None:
    held = f"; transactions hold {view.held:,} more" if view.held else ""
    confirm(f"{word} {view.name} with {counted(view.messages, 'message')}{held}?", is_sure)


def _done(view: QueueView, sentence: str, as_json: bool) -> int:
    if as_json:
        print_json(view.fields())
    else:
        print_plain(sentence, Console())
    return ExitCode.OK


def _row(view: QueueView) -> tuple[str, ...]:
    return (
        view.name,
        str(view.messages),
        str(view.held),
        str(view.bytes),
        duration(view.oldest_s) if view.messages else "-",
        _state(view),
    )


def _state(view: QueueView) -> str:
    return ("on" if view.enabled else "off") + (", prioritized" if view.prioritized else "")


def _pairs(view: QueueView) -> list[tuple[str, str]]:
    return [
        ("queue", view.name),
        ("state", "on" if view.enabled else "off: puts and gets are refused"),
        ("order", "priority, then time" if view.prioritized else "time"),
        ("messages", f"{view.messages:,}"),
        ("held by transactions", f"{view.held:,}"),
        ("bytes", f"{view.bytes:,}"),
        ("oldest", duration(view.oldest_s) if view.messages else "-"),
        ("messages at most", f"{view.messages_max:,}" if view.messages_max else "no limit"),
        ("bytes at most", f"{view.bytes_max:,}" if view.bytes_max else "no limit"),
    ]
