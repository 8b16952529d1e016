"""The demo for machines without Spark: two nodes, sellers and billers, all of them killed.

    tickets on node A ──sellers──► orders on node B ──billers──► invoices on node A

Each arrow is a transaction over both nodes: what is got at the one is put at the other, or neither
happens. While sellers and billers work at full speed, they, both nodes and the coordinator are
killed with `kill -9`, one after the other, and started again. In the end every ticket must have
become exactly one invoice.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

import oncemq
from clients.servers import Server
from idl.cos import Status

TICKETS, ORDERS, INVOICES = "tickets", "orders", "invoices"
AT_ONCE = 5
GET_S = 0.5
TRANSACTION_S = 10.0
CALL_S = 5.0
PAUSE_S = 0.05
KILL_EVERY_S = 1.2
KILLING_S = 25.0
FINISHING_S = 25.0
LOOK_S = 0.2
STANDARD_INPUT = 0


def run(tickets: int) -> int:
    """Runs the demo; 0 only if every ticket is exactly one invoice."""
    with tempfile.TemporaryDirectory(prefix="oncemq-demo-") as folder:
        demo = Demo(Path(folder), tickets)
        try:
            return show(demo)
        finally:
            demo.end()


# --- A client ------------------------------------------------------------------------------------


def work(source_url: str, source: str, target_url: str, target: str) -> None:
    """Moves messages from one queue to another until it is killed, or its parent is gone."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    here = oncemq.connect(source_url, timeout=CALL_S).queue(source)
    connection = oncemq.connect(target_url, timeout=CALL_S)
    there = connection.queue(target)
    while True:
        try:
            with connection.transaction(timeout=TRANSACTION_S):
                for message in here.get_many(AT_ONCE, GET_S):
                    there.put(message.payload)
        except oncemq.OnceMQError:
            # Whatever it was: it happened as a whole, or not at all, so that nothing is to be done.
            time.sleep(PAUSE_S)


def _end_with_parent() -> None:
    while os.read(STANDARD_INPUT, 1):
        pass
    os._exit(0)


class Client:
    """A process that works. It has nothing to remember, so that it may be killed at any time."""

    def __init__(self, name: str, *arguments: str) -> None:
        self.name = name
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """It works."""
        command = [sys.executable, "-m", "clients.demo.tickets", *self._arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    def kill(self) -> None:
        """kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdin is not None
            self._process.stdin.close()


# --- All of them ---------------------------------------------------------------------------------


@dataclass
class Demo:
    """The servers, the clients, and what was done to them."""

    folder: Path
    tickets: int
    servers: list[Server] = field(default_factory=list)
    clients: list[Client] = field(default_factory=list)
    kills: dict[str, int] = field(default_factory=dict)
    connections: list[oncemq.Connection] = field(default_factory=list)
    last: str = ""

    def start(self) -> None:
        """Everything runs, and the tickets are there."""
        quiet = "--quiet"
        deciding = Server(
            "coordinator",
            "coordinator",
            ["--data", str(self.folder / "coordinator"), quiet],
            "127.0.0.1:0",
        )
        deciding.start()
        self.servers.append(deciding)
        for name in ("A", "B"):
            arguments = ["--data", str(self.folder / name), "--name", name, quiet]
            arguments += ["--coordinator", deciding.address]
            node = Server(f"node {name}", "mqserver", arguments, "127.0.0.1:0")
            node.start()
            self.servers.append(node)
        a, b = (f"mq://{node.address}" for node in self.servers[1:])
        self.connections = [oncemq.connect(url, timeout=CALL_S) for url in (a, b)]
        self.connections[0].queue(TICKETS).put_many(
            str(number).encode() for number in range(self.tickets)
        )
        for number in (1, 2):
            self.clients.append(Client(f"seller {number}", a, TICKETS, b, ORDERS))
            self.clients.append(Client(f"biller {number}", b, ORDERS, a, INVOICES))
        for client in self.clients:
            client.start()

    def victims(self) -> Iterator[Server | Client]:
        """Who is killed next: each kind in turn."""
        deciding, node_a, node_b = self.servers
        for client in itertools.cycle(self.clients):
            yield from (client, deciding, node_a, node_b)

    def kill(self, victim: Server | Client) -> None:
        """kill -9, and up again."""
        self.last = f"kill -9 {victim.name}"
        victim.kill()
        victim.start()
        kind = victim.name if isinstance(victim, Server) else "clients"
        self.kills[kind] = self.kills.get(kind, 0) + 1

    def count(self, place: int, queue: str) -> int | None:
        """How many messages can be had; None while the node is away."""
        try:
            return len(self.connections[place].queue(queue))
        except oncemq.OnceMQError:
            return None

    def found(self) -> collections.Counter[bytes]:
        """Every invoice, and how often it is there."""
        invoices = self.connections[0].queue(INVOICES).browse()
        return collections.Counter(message.payload for message in invoices)

    def in_doubt(self) -> int:
        """Branches that are prepared and not decided, at both nodes."""
        branches = [info for each in self.connections for info in each.admin().listBranches()]
        return sum(info.state is Status.PREPARED for info in branches)

    def end(self) -> None:
        """Nothing is left running."""
        for client in self.clients:
            client.kill()
        for server in self.servers:
            server.kill()
        for connection in self.connections:
            connection.close()


# --- What is shown -------------------------------------------------------------------------------


def show(demo: Demo) -> int:
    """Runs it all and says how it went."""
    console = Console()
    console.print(
        Text("What one transaction gets and puts happens once and as a whole, or not at all,\n")
        + Text("whoever dies and whenever.", style="bold")
    )
    console.print("\ntickets (node A) ─► orders (node B) ─► invoices (node A), 4 clients\n")
    with console.status("Starting a coordinator and two nodes ..."):
        demo.start()
    begun = time.monotonic()
    with _display(demo, console) as refresh:
        _work_and_kill(demo, begun, refresh)
        is_over = _finish(demo, refresh)
    return _verdict(demo, console, time.monotonic() - begun, is_over)


def _work_and_kill(demo: Demo, begun: float, refresh: Callable[[], int]) -> None:
    """Whole rounds, so that everybody has died equally often."""
    for number, victim in enumerate(demo.victims()):
        is_over = time.monotonic() - begun > KILLING_S or refresh() >= demo.tickets
        if is_over and number % 4 == 0:
            return
        _wait(KILL_EVERY_S, refresh)
        demo.kill(victim)


def _finish(demo: Demo, refresh: Callable[[], int]) -> bool:
    """The rest is moved, and nothing is in doubt; whether that came to pass in time."""
    demo.last = "no more kills; finishing"
    deadline = time.monotonic() + FINISHING_S
    while time.monotonic() < deadline:
        _wait(LOOK_S, refresh)
        with contextlib.suppress(oncemq.OnceMQError):
            if demo.count(0, INVOICES) == demo.tickets and not demo.in_doubt():
                return True
    return False


def _wait(seconds: float, refresh: Callable[[], int]) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        refresh()
        time.sleep(min(LOOK_S, max(deadline - time.monotonic(), 0.0)))


@contextlib.contextmanager
def _display(demo: Demo, console: Console) -> Iterator[Callable[[], int]]:
    """How far it is, on a terminal; a line for each kill otherwise."""
    bar = Progress(
        TextColumn("invoices"),
        BarColumn(40),
        TextColumn("{task.completed:,} of {task.total:,}"),
        TimeElapsedColumn(),
        console=console,
    )
    task = bar.add_task("", total=demo.tickets)
    shown = Text()
    known = 0
    told = ""

    def refresh() -> int:
        nonlocal known, told
        counted = demo.count(0, INVOICES)
        known = known if counted is None else counted
        bar.update(task, completed=known)
        away = " (node A is away)" if counted is None else ""
        kills = sum(demo.kills.values())
        shown.plain = f"{kills} kills so far; {demo.last}{away}" if demo.last else ""
        if demo.last != told and not console.is_terminal:
            told = demo.last
            console.print(f"{known:>6} invoices; {told}", highlight=False)
        return known

    if not console.is_terminal:
        yield refresh
        return
    grid = Table.grid()
    grid.add_row(bar)
    grid.add_row(shown)
    with Live(grid, console=console, transient=True):
        yield refresh


def _verdict(demo: Demo, console: Console, seconds: float, is_over: bool) -> int:
    found = demo.found()
    expected = {str(number).encode() for number in range(demo.tickets)}
    lost = len(expected - found.keys())
    twice = sum(times - 1 for times in found.values())
    strange = len(found.keys() - expected)
    is_exact = not (lost or twice or strange) and is_over
    kills = ", ".join(f"{name} {times}" for name, times in demo.kills.items())
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    rows: Sequence[tuple[str, str]] = [
        ("killed with kill -9", f"{sum(demo.kills.values())} times ({kills})"),
        ("tickets", f"{demo.tickets:,}"),
        ("invoices", f"{found.total():,}"),
        ("lost", f"{lost:,}"),
        ("twice", f"{twice:,}"),
        ("left elsewhere", _left(demo)),
        ("time", f"{seconds:.0f} s"),
    ]
    for row in rows:
        table.add_row(*row)
    console.print(table)
    if is_exact:
        console.print("\nExact: every ticket is one invoice.", style="bold green")
        console.print("Two nodes, one coordinator, four clients; without Spark.")
        return 0
    console.print(
        "\nNot exact, or not in time. This must not happen: please report it.", style="red"
    )
    return 1


def _left(demo: Demo) -> str:
    tickets, orders = demo.count(0, TICKETS), demo.count(1, ORDERS)
    return f"{tickets} tickets, {orders} orders, {demo.in_doubt()} in doubt"


if __name__ == "__main__":
    work(*sys.argv[1:])
