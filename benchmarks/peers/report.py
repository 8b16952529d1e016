"""What the comparison with the peers found: tables for a terminal, JSON, a page, and charts.

The page is a part of docs/BENCHMARKS.md between two marks, so that the words around it are kept
when it is made anew. It knows the rows that were found and nothing of how.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from rich.console import Console
from rich.table import Table

from benchmarks.measure import Spread, Verdict
from benchmarks.peers.running import Row
from benchmarks.peers.systems import LIMIT, OURS, SYSTEMS
from benchmarks.peers.workloads import DEEP, DEPTH_RATIO_MIN, GOALS, SHALLOW, Goal, Workload

BEGIN, END = "<!-- peers: begin -->", "<!-- peers: end -->"
MICRO = 1e6

Group = tuple[Workload, list[Row]]


def grouped(rows: Iterable[Row]) -> list[Group]:
    """The rows of each workload, the fastest first; what is absent comes last."""
    groups: dict[Workload, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.workload, []).append(row)
    return [
        (workload, sorted(found, key=lambda row: -_rate(row))) for workload, found in groups.items()
    ]


def _rate(row: Row) -> float:
    return 0.0 if row.absent else row.messages_per_s.median


def is_ours(row: Row) -> bool:
    """Whether the row is OnceMQ's."""
    return row.system.name.startswith(OURS)


def best_peer(rows: Sequence[Row]) -> Row | None:
    """The fastest of the others that is reached over the network, as ours is."""
    others = [
        row
        for row in rows
        if not row.absent
        and not is_ours(row)
        and row.system.name != LIMIT
        and not row.system.is_in_process
    ]
    return max(others, key=_rate, default=None)


def _found(rows: Sequence[Row], name: str) -> Row | None:
    return next((row for row in rows if row.system.name == name and not row.absent), None)


# --- Goals ---------------------------------------------------------------------------------------


def judged(groups: Sequence[Group]) -> list[tuple[str, Spread, Verdict]]:
    """Each goal against each peer that was measured: in words, what was found, and the verdict."""
    told = []
    for goal in GOALS:
        for workload, rows in groups:
            if not _is_meant(goal, workload):
                continue
            ours = next((row for row in rows if is_ours(row) and not row.absent), None)
            for peer in goal.peers:
                other = _found(rows, peer)
                if ours is not None and other is not None:
                    times = ours.times(other)
                    text = f"{workload.title}: at least {goal.times:.2g} x {peer}"
                    told.append((text, times, _verdict(times, goal.times)))
    return told + _depth(groups)


def _is_meant(goal: Goal, workload: Workload) -> bool:
    return (workload.name, workload.operation, workload.payload_bytes) == (
        goal.workload,
        goal.operation,
        goal.payload_bytes,
    ) and not workload.depth


def _depth(groups: Sequence[Group]) -> list[tuple[str, Spread, Verdict]]:
    by_depth = {workload.depth: rows[0] for workload, rows in groups if workload.depth}
    shallow, deep = by_depth.get(SHALLOW), by_depth.get(DEEP)
    if shallow is None or deep is None or shallow.absent or deep.absent:
        return []
    times = deep.times(shallow)
    text = f"W7 with {DEEP:,} queued: at least {DEPTH_RATIO_MIN} x the rate with {SHALLOW:,}"
    return [(text, times, _verdict(times, DEPTH_RATIO_MIN))]


def _verdict(times: Spread, least: float) -> Verdict:
    if times.median >= least:
        return Verdict.KEPT if times.low >= least else Verdict.PERHAPS_KEPT
    return Verdict.MISSED if times.high < least else Verdict.PERHAPS_MISSED


# --- For people at a terminal --------------------------------------------------------------------


def show(groups: Sequence[Group], console: Console) -> None:
    """Prints a table for each workload, and which goals are reached."""
    for workload, rows in groups:
        table = Table(title=_titled(workload), title_justify="left", title_style="bold")
        table.add_column()
        for heading in ("messages/s", "p50 µs", "p99 µs", "x the limit", "x the best peer"):
            table.add_column(heading, justify="right")
        for row in rows:
            table.add_row(*_cells(row, rows), style="bold cyan" if is_ours(row) else "")
        console.print(table)
    for text, times, verdict in judged(groups):
        good = verdict in (Verdict.KEPT, Verdict.PERHAPS_KEPT)
        console.print(
            f"{text}: {_shown(times)}: [{'green' if good else 'red'}]{verdict.value}[/]",
            soft_wrap=True,
        )


def _titled(workload: Workload) -> str:
    details = [f"{workload.payload_bytes:,} bytes"] if workload.name == "W6" else []
    details += [f"{workload.depth:,} queued"] if workload.depth else []
    return ", ".join([workload.title, *details])


def _cells(row: Row, rows: Sequence[Row]) -> list[str]:
    if row.absent:
        return [row.system.name, "absent", row.absent[:60], "", "", ""]
    return [
        row.system.name,
        f"{row.messages_per_s.median:,.0f}",
        f"{row.middle(lambda taken: taken.p50_s).median * MICRO:,.0f}",
        f"{row.middle(lambda taken: taken.p99_s).median * MICRO:,.0f}",
        _against(row, _found(rows, LIMIT)),
        _against(row, best_peer(rows)),
    ]


def _against(row: Row, other: Row | None) -> str:
    return "" if other is None or other is row else f"{row.times(other).median:.2f}"


def _shown(times: Spread) -> str:
    return f"{times.median:.2f} x ({times.low:.2f} to {times.high:.2f})"


# --- For programs --------------------------------------------------------------------------------


def described(groups: Sequence[Group]) -> dict[str, Any]:
    """The same for programs."""
    return {
        "workloads": [
            {"title": _titled(workload), "systems": [_described(row) for row in rows]}
            for workload, rows in groups
        ],
        "goals": [
            {"goal": text, "times": vars(times), "verdict": verdict.value}
            for text, times, verdict in judged(groups)
        ],
    }


def _described(row: Row) -> dict[str, Any]:
    if row.absent:
        return {"name": row.system.name, "absent": row.absent}
    return {
        "name": row.system.name,
        "messages_per_s": vars(row.messages_per_s),
        "p50_us": row.middle(lambda taken: taken.p50_s).median * MICRO,
        "p99_us": row.middle(lambda taken: taken.p99_s).median * MICRO,
    }


# --- The page ------------------------------------------------------------------------------------


def write_page(groups: Sequence[Group], page: Path, charts: Path, made: str) -> None:
    """The part of the page between the marks is made anew, and the charts beside it."""
    charts.mkdir(exist_ok=True)
    text = page.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, mark, after = rest.partition(END)
    assert mark, f"{page} has no marks {BEGIN} and {END}"
    parts = [made, _goals_told(groups)]
    for number, (workload, rows) in enumerate(groups, 1):
        name = f"peers-{number}.svg"
        (charts / name).write_text(chart(_titled(workload), rows), encoding="utf-8")
        picture = f"![{_titled(workload)}]({charts.name}/{name})"
        parts += [f"### {_titled(workload)}", picture, _table_told(rows)]
    parts.append(_settings_told(groups))
    whole = f"{before}{BEGIN}\n" + "\n\n".join(parts) + f"\n\n{END}{after}"
    page.write_text(whole, encoding="utf-8")


def _goals_told(groups: Sequence[Group]) -> str:
    lines = ["| goal | found | |", "|---|---:|---|"]
    for text, times, verdict in judged(groups):
        lines.append(f"| {text} | {_shown(times)} | {verdict.value} |")
    return "\n".join(lines)


def _table_told(rows: Sequence[Row]) -> str:
    lines = [
        "| | messages/s | p50 µs | p99 µs | x the limit | x the best peer |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        cells = _cells(row, rows)
        if is_ours(row):
            cells[0] = f"**{cells[0]}**"
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _settings_told(groups: Sequence[Group]) -> str:
    measured = {row.system.name for _, rows in groups for row in rows}
    lines = ["### What each system does before it answers", "", "| | |", "|---|---|"]
    lines += [f"| {s.name} | {s.durability} |" for s in SYSTEMS if s.name in measured]
    return "\n".join(lines)


# --- Charts --------------------------------------------------------------------------------------

_WIDTH, _LABELS, _FIGURES, _BAR, _TOP = 760, 200, 90, 22, 44
_OURS_COLOUR, _PEER_COLOUR, _LIMIT_COLOUR = "#0b6e99", "#b8c4cc", "#e3e3e3"


def chart(title: str, rows: Sequence[Row]) -> str:
    """Bars, the fastest first, as SVG."""
    shown = [row for row in rows if not row.absent]
    most = max((_rate(row) for row in shown), default=1.0)
    height = _TOP + _BAR * len(shown) + 12
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}"'
        ' font-family="sans-serif" font-size="13">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        f'<text x="12" y="26" font-size="15" font-weight="bold">{escape(title)}: messages/s</text>',
    ]
    for number, row in enumerate(shown):
        lines += _bar(row, _TOP + _BAR * number, _rate(row) / most)
    return "\n".join([*lines, "</svg>", ""])


def _bar(row: Row, top: int, share: float) -> list[str]:
    colour = _PEER_COLOUR
    if is_ours(row):
        colour = _OURS_COLOUR
    elif row.system.name == LIMIT:
        colour = _LIMIT_COLOUR
    length = max(2.0, share * (_WIDTH - _LABELS - _FIGURES))
    weight = ' font-weight="bold"' if is_ours(row) else ""
    return [
        f'<text x="{_LABELS - 8}" y="{top + 14}" text-anchor="end"{weight}>'
        f"{escape(row.system.name)}</text>",
        f'<rect x="{_LABELS}" y="{top}" width="{length:.0f}" height="{_BAR - 6}" fill="{colour}"/>',
        f'<text x="{_LABELS + length + 6:.0f}" y="{top + 13}"{weight}>'
        f"{row.messages_per_s.median:,.0f}</text>",
    ]
