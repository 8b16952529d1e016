"""How a running pipeline is shown, on standard error: counts that change, or a line for each event.

It only looks at `Progress`, and is told of batches and retries by whoever runs the pipeline.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from clients.commands.terminal import duration, print_plain
from clients.pipeline.plan import Plan
from clients.pipeline.progress import Batch, Progress
from clients.store_lines import printable

REFRESHES_PER_S = 5
OTID_SHOWN = 20
# So much of the newest is shown below the counts.
LAST_EVENTS = 3


class PipelineView:
    """The screen of one run. See `Listener`."""

    def __init__(
        self,
        plan: Plan,
        progress: Progress,
        where: str,
        clock: Callable[[], float],
        is_quiet: bool = False,
    ) -> None:
        # Where standard error is no place of its own, and something else is to stand there alone.
        self._is_quiet = is_quiet
        self._plan = plan
        self._progress = progress
        self._where = where
        self._clock = clock
        self._console = Console(stderr=True)
        self._events: list[Text] = []

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """While it runs. Nothing of it is left on a terminal; the summary follows."""
        if not self._console.is_terminal:
            yield
            return
        with Live(
            get_renderable=self._screen,
            console=self._console,
            transient=True,
            refresh_per_second=REFRESHES_PER_S,
            redirect_stdout=False,
            redirect_stderr=False,
        ):
            yield

    def committed(self, batch: Batch) -> None:
        """See `Listener.committed`."""
        rows = [f"{count:,} in" for count in batch.rows_in.values()]
        rows += [f"{count:,} to {where}" for where, count in batch.rows_out.items()]
        took = duration(round(self._clock() - self._progress.batch_begun_s))
        told = ", ".join(rows) or "counts not known"
        self._tell(Text(f"batch {self._progress.batches}: {told}, {took}"))

    def retrying(self, why: str, pause_s: float, attempt: int) -> None:
        """See `Listener.retrying`."""
        told = f"rolled back, attempt {attempt + 1} in {pause_s:g} s: {printable(why)}"
        self._tell(Text(told, style="yellow"))

    def _tell(self, event: Text) -> None:
        if self._console.is_terminal:
            self._events = [*self._events, event][-LAST_EVENTS:]
        elif not self._is_quiet:
            print_plain(event, self._console)

    # --- The screen

    def _screen(self) -> Group:
        progress, now = self._progress, self._clock()
        kind = f"{self._plan.mode.value}, {self._plan.trigger}, {self._where}"
        head = Text.assemble((self._plan.name, "bold"), f"  {kind}  ", _clock_time(now, progress))
        return Group(head, self._counts(now), self._state(now), *map(_cut, self._events))

    def _counts(self, now: float) -> Table:
        progress = self._progress
        table = Table.grid(padding=(0, 2, 0, 0))
        for justify in ("left", "right", "right", "left"):
            table.add_column(justify=justify)
        rate = f"{progress.rate_now(now):,.0f}/s"
        for source in self._plan.sources:
            there = progress.waiting.get(source.name)
            more = "" if there is None else f"{there:,} to go"
            table.add_row(
                f"  queue {source.queue}", f"{progress.rows_in[source.name]:,} in", rate, more
            )
        for sink in self._plan.sinks:
            table.add_row(f"  {sink.where}", f"{progress.rows_out[sink.where]:,} out", "", "")
        return table

    def _state(self, now: float) -> Text:
        progress = self._progress
        parts = [f"  {progress.batches:,} batches committed"]
        if progress.retries:
            parts.append(f"{progress.retries:,} retries")
        if progress.otid:
            age = duration(round(now - progress.batch_begun_s))
            parts.append(f"transaction {progress.otid[:OTID_SHOWN]}… open for {age}")
        else:
            parts.append(progress.state)
        return _cut(Text(", ".join(parts)))


def _cut(text: Text) -> Text:
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _clock_time(now: float, progress: Progress) -> Text:
    minutes, seconds = divmod(int(now - progress.begun_s), 60)
    return Text(f"{minutes}:{seconds:02d}", style="cyan")


def summary_pairs(plan: Plan, progress: Progress, now: float) -> Sequence[tuple[str, str]]:
    """What the run has done, for `show_pairs`."""
    pairs = [("pipeline", plan.name), ("batches", f"{progress.batches:,}")]
    for source in plan.sources:
        pairs.append((f"queue {source.queue}", f"{progress.rows_in[source.name]:,} in"))
    for sink in plan.sinks:
        pairs.append((sink.where, f"{progress.rows_out[sink.where]:,} out"))
    if progress.skipped:
        pairs.append(("skipped", f"{progress.skipped:,}, done before"))
    pairs.append(("retries", f"{progress.retries:,}"))
    pairs.append(("time", f"{now - progress.begun_s:.1f} s, {progress.rate(now):,.0f} rows/s"))
    return pairs
