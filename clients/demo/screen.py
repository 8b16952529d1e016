"""What the demo shows: how far it is, who was killed, and at the end a table."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from clients.demo.verdict import Verdict
from clients.demo.world import LAST_EVENTS, World

PROMISE = (
    "What one transaction gets, puts and writes happens once and as a whole,",
    "or not at all, whoever dies and whenever.",
)
BAR_WIDTH = 40


class Screen:
    """The terminal, or a pipe, which gets a line for each event."""

    def __init__(self, console: Console, world: World) -> None:
        self._console = console
        self._world = world
        self._in_queue = 0
        self._in_table = 0
        self._is_away = False
        self._told = 0

    def introduce(self) -> None:
        """Says what is about to be seen."""
        world = self._world
        self._console.print(Text(PROMISE[0]))
        self._console.print(Text(PROMISE[1], style="bold"))
        arrow = f"──► Spark SQL, {world.batch:,} a batch ──┬─►"
        gap = " " * (len(arrow) - len("└─►"))
        picture = (
            f"\n  queue orders {arrow} queue invoices\n"
            f"               {gap}└─► table invoices, in {world.books.title}\n\n"
            "  Each batch is one transaction. Meanwhile, kill -9 of Spark's Python workers\n"
            "  and driver, of the node and of the coordinator.\n"
        )
        self._console.print(Text(picture))

    @contextlib.contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """While something is made ready."""
        if not self._console.is_terminal:
            self._console.print(f"{what} ...", highlight=False)
            yield
            return
        with self._console.status(f"{what} ..."):
            yield

    @contextlib.contextmanager
    def live(self) -> Iterator[Callable[[], None]]:
        """While it runs; what is handed out is to be called again and again."""
        if not self._console.is_terminal:
            yield self._look
            return
        with Live(
            get_renderable=self._picture, console=self._console, transient=True, auto_refresh=False
        ) as live:

            def refresh() -> None:
                self._look()
                live.refresh()

            yield refresh

    @property
    def is_done(self) -> bool:
        """Whether everything can be seen in its place."""
        return self._in_queue == self._in_table == self._world.orders

    @property
    def share(self) -> float:
        """How much of it can be seen."""
        return min(self._in_queue, self._in_table) / self._world.orders

    def _look(self) -> None:
        found = self._world.invoices_in_queue()
        self._is_away = found is None
        self._in_queue = self._in_queue if found is None else found
        self._in_table = self._world.books.count()
        if not self._console.is_terminal:
            for at_s, event in self._world.events[self._told :]:
                self._told += 1
                self._console.print(f"{_clock(at_s)}  {event}", highlight=False, soft_wrap=True)

    def _picture(self) -> Group:
        world = self._world
        bars = Table.grid(padding=(0, 2, 0, 0))
        away = Text("the node is away", style="red") if self._is_away else Text("")
        for name, count, note in (
            ("  queue invoices", self._in_queue, away),
            ("  table invoices", self._in_table, Text("")),
        ):
            bar = ProgressBar(total=world.orders, completed=count, width=BAR_WIDTH)
            bars.add_row(Text(name), bar, Text(f"{count:,}"), note)
        kills = ", ".join(f"{kind} {times}" for kind, times in world.kills.items()) or "nobody yet"
        lines = [Text(f"\n  {_clock(world.seconds())}  killed: {kills}\n")]
        for at_s, event in world.events[-LAST_EVENTS:]:
            style = "bold red" if event.startswith("kill") else "dim"
            line = Text(f"  {_clock(at_s)}  {event}", style=style)
            line.no_wrap, line.overflow = True, "ellipsis"
            lines.append(line)
        return Group(bars, *lines)


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def show_verdict(console: Console, verdict: Verdict) -> None:
    """The end of the story, in one table and one sentence."""
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    table.add_column("")
    table.add_column("queue", justify="right")
    table.add_column("table", justify="right")
    table.add_row("orders in", f"{verdict.orders:,}", "")
    for name in ("found", "lost", "duplicated"):
        title = "invoices out" if name == "found" else name
        counts = [getattr(place, name) for place in (verdict.queue, verdict.table)]
        style = "" if name == "found" else ("red" if any(counts) else "green")
        table.add_row(title, *(f"{count:,}" for count in counts), style=style)
    console.print(table)
    console.print()
    kills = ", ".join(f"{kind} {times}" for kind, times in sorted(verdict.kills.items()))
    facts = Table.grid(padding=(0, 3, 0, 0))
    facts.add_row("kills survived", f"{sum(verdict.kills.values())} ({kills})")
    facts.add_row("rolled back", f"{verdict.retries} batches, and tried again")
    facts.add_row("left behind", f"{verdict.orders_left} orders, {verdict.in_doubt} in doubt")
    facts.add_row("time", f"{verdict.seconds:.0f} s")
    console.print(facts)
    if verdict.is_exact:
        told = "Exact: every order is one invoice in the queue and one row in the table."
        console.print(f"\n{told}", style="bold green", highlight=False)
        return
    told = "Not exact, or not in time. This must not happen: please report it."
    console.print(f"\n{told}", style="bold red", highlight=False)
