"""What the comparison with the peers means: who is the fastest, which goals are reached, in words.

Tables for a terminal are here, the page is made in page.py. It knows the rows that were found and
nothing of how.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from benchmarks.measure import Spread, Verdict
from benchmarks.peers.figures import Found
from benchmarks.peers.running import Row
from benchmarks.peers.systems import OURS
from benchmarks.peers.witness import Seen
from benchmarks.peers.workloads import GOALS, TURN_S, Goal, Workload

MICRO = 1e6
HEADINGS = (
    "messages/s",
    "half of the rounds",
    "calls in a round",
    "p50 µs",
    "p99 µs",
    "x the limit",
    "x the best peer",
)

BUDGET = (
    f"After {TURN_S} s of a round a system begins no other call, so that a slow one makes fewer; "
    "its rate is that of the calls it made."
)

Group = tuple[Workload, list[Row]]


def grouped(rows: Iterable[Row]) -> list[Group]:
    """The rows of each workload, the fastest first; what is absent comes last."""
    groups: dict[Workload, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.workload, []).append(row)
    return [
        (workload, sorted(found, key=lambda row: -rate(row))) for workload, found in groups.items()
    ]


def rate(row: Row) -> float:
    """Messages in a second; none where it is absent."""
    return 0.0 if row.absent else row.messages_per_s.median


def is_ours(row: Row) -> bool:
    """Whether the row is OnceMQ's."""
    return row.system.name.startswith(OURS)


def ours_of(rows: Sequence[Row]) -> Row | None:
    """The row that stands for OnceMQ."""
    ours = [row for row in rows if is_ours(row) and not row.absent]
    return next((row for row in ours if row.system.name == OURS), ours[0] if ours else None)


def best_peer(rows: Sequence[Row]) -> Row | None:
    """The fastest of the others that syncs and is reached over the network, as ours does and is."""
    others = [row for row in rows if not row.absent and not is_ours(row) and row.is_synced]
    return max((row for row in others if row.system.is_networked), key=rate, default=None)


def limit_of(rows: Sequence[Row]) -> Row | None:
    """What nothing can go beyond."""
    return next((row for row in rows if row.system.is_limit and not row.absent), None)


def _found(rows: Sequence[Row], name: str) -> Row | None:
    return next((row for row in rows if row.system.name == name and not row.absent), None)


# --- Goals ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Judgement:
    """A goal in words, the peer that comes nearest to it, what was found there, and the verdict."""

    goal: str
    nearest: str
    times: Spread
    verdict: Verdict

    @property
    def is_good(self) -> bool:
        """Whether the goal is reached, perhaps within the noise."""
        return self.verdict in (Verdict.KEPT, Verdict.PERHAPS_KEPT)


def judged(groups: Sequence[Group]) -> list[Judgement]:
    """Each goal against the strongest of its peers that were measured."""
    told = []
    for goal in GOALS:
        for workload, rows in groups:
            ours = _found(rows, goal.ours)
            there = [row for row in rows if row.system.name in goal.peers and not row.absent]
            others = [row for row in there if row.is_synced]
            if _is_meant(goal, workload) and ours is not None and others:
                strongest = max(others, key=rate)
                times = ours.times(strongest)
                text = f"{titled(workload)}: {_wanted(goal)}"
                name = strongest.system.name
                told.append(Judgement(text, name, times, _verdict(times, goal.times)))
    return told


def _wanted(goal: Goal) -> str:
    whom = goal.peers[0] if len(goal.peers) == 1 else f"each of {len(goal.peers)} peers"
    return f"ahead of {whom}" if goal.times == 1 else f"at least {goal.times:.2g} x {whom}"


def _is_meant(goal: Goal, workload: Workload) -> bool:
    return (workload.name, workload.operation, workload.payload_bytes) == (
        goal.workload,
        goal.operation,
        goal.payload_bytes,
    )


def _verdict(times: Spread, least: float) -> Verdict:
    if times.median >= least:
        return Verdict.KEPT if times.low >= least else Verdict.PERHAPS_KEPT
    return Verdict.MISSED if times.high < least else Verdict.PERHAPS_MISSED


# --- For people at a terminal --------------------------------------------------------------------


def show(found: Found, console: Console) -> None:
    """Prints a table for each workload, which goals are reached, and what strace has seen."""
    groups = grouped(found.rows)
    for workload, rows in groups:
        title = f"{titled(workload)} ({rounds_told(rows)})"
        table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE)
        table.add_column(no_wrap=True)
        for heading in HEADINGS:
            table.add_column(heading, justify="right")
        for row in rows:
            table.add_row(*cells(row, rows), style="bold cyan" if is_ours(row) else "")
        console.print(table)
    for told in absences(found.rows):
        console.print(told, style="yellow", soft_wrap=True)
    if not all(workload.is_in_spark for workload, _ in groups):
        console.print(BUDGET, soft_wrap=True)
    for one in judged(groups):
        colour = "green" if one.is_good else "red"
        told = f"{one.goal}: {shown(one.times)} {one.nearest}: [{colour}]{one.verdict.value}[/]"
        console.print(told, soft_wrap=True)
    for name, told in witnessed(found.seen).items():
        console.print(f"{name}: {told}", soft_wrap=True)


def titled(workload: Workload) -> str:
    """The workload, with its size where that is what it is about."""
    size = f", {workload.payload_bytes:,} bytes" if workload.name == "W6" else ""
    return f"{workload.title}{size}"


def rounds_told(rows: Sequence[Row]) -> str:
    """How many rounds there were: fewer than were planned where the machine was slow."""
    count = max((len(row.rounds) for row in rows), default=0)
    return "1 round" if count == 1 else f"{count} rounds"


def absences(rows: Iterable[Row]) -> list[str]:
    """Who is missing, from which work, and why."""
    works: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row.absent:
            works.setdefault((row.system.name, row.absent), []).append(row.workload.short)
    return [
        f"{name} was absent from {'; '.join(shorts)}: {reason}"
        for (name, reason), shorts in works.items()
    ]


def named(row: Row) -> str:
    """Its name, with a warning where it does less than the others."""
    return row.system.name if row.is_synced else f"{row.system.name} (not synced)"


def cells(row: Row, rows: Sequence[Row]) -> list[str]:
    """What a table says of a row."""
    if row.absent:
        return [row.system.name, "absent", *[""] * (len(HEADINGS) - 1)]
    speed = row.messages_per_s
    return [
        named(row),
        f"{speed.median:,.0f}",
        f"{speed.low:,.0f} to {speed.high:,.0f}",
        f"{row.middle(lambda taken: taken.calls).median:,.0f}",
        f"{row.middle(lambda taken: taken.p50_s).median * MICRO:,.0f}",
        f"{row.middle(lambda taken: taken.p99_s).median * MICRO:,.0f}",
        _against(row, limit_of(rows)),
        _against(row, best_peer(rows)),
    ]


def _against(row: Row, other: Row | None) -> str:
    return "" if other is None or other is row else f"{row.times(other).median:.2f}"


def shown(times: Spread) -> str:
    """A ratio, and between which quartiles it lies."""
    return f"{times.median:.2f} x ({times.low:.2f} to {times.high:.2f})"


def witnessed(seen: Iterable[Seen]) -> dict[str, str]:
    """What strace has seen of each system, in words."""
    told: dict[str, list[str]] = {}
    for each in seen:
        share = f"{each.synced} of {each.calls}" if each.synced < each.calls else "all"
        text = f"{each.operation.value} {share} ({each.syncs_per_call:.1f})"
        told.setdefault(each.system, []).append(text)
    return {name: ", ".join(texts) for name, texts in told.items()}
