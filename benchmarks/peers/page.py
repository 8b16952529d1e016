"""The peers' part of docs/BENCHMARKS.md, and the charts beside it.

It stands between two marks, so that the words around it are kept when it is made anew. What comes
first is what a reader wants first: one picture, one table, and only then every workload.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers.charts import Bar, Kind, bars, overview
from benchmarks.peers.figures import Found, key
from benchmarks.peers.report import (
    BUDGET,
    HEADINGS,
    Group,
    absences,
    best_peer,
    cells,
    grouped,
    is_ours,
    judged,
    limit_of,
    named,
    ours_of,
    rate,
    rounds_told,
    shown,
    titled,
    witnessed,
)
from benchmarks.peers.running import Row
from benchmarks.peers.systems import SYSTEMS
from benchmarks.peers.witness import CALLS

BEGIN, END = "<!-- peers: begin -->", "<!-- peers: end -->"
OVERVIEW = "peers-overview.svg"


def write_page(found: Found, page: Path, charts: Path, made: str) -> None:
    """The part of the page between the marks is made anew, and so are all charts."""
    text = page.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, mark, after = rest.partition(END)
    assert mark, f"{page} has no marks {BEGIN} and {END}"
    charts.mkdir(exist_ok=True)
    for old in charts.glob("peers-*.svg"):
        old.unlink()
    groups = grouped(found.rows)
    parts = [made, *_in_short(groups, charts), _goals_told(groups)]
    for workload, rows in groups:
        name = f"peers-{key(workload).lower().replace(' ', '-')}.svg"
        (charts / name).write_text(chart(titled(workload), rows), encoding="utf-8")
        picture = f"![{titled(workload)}]({charts.name}/{name})"
        parts += [
            f"#### {titled(workload)}",
            picture,
            _folded(f"the figures, {rounds_told(rows)}", _table_told(rows)),
        ]
    parts.append(_settings_told(found))
    whole = f"{before}{BEGIN}\n" + "\n\n".join(parts) + f"\n\n{END}{after}"
    page.write_text(whole, encoding="utf-8")


# --- In short ------------------------------------------------------------------------------------


def _in_short(groups: Sequence[Group], charts: Path) -> list[str]:
    """One picture and one table: ours beside the fastest peer, work by work."""
    lines = [
        "| work | OnceMQ, messages/s | the fastest peer | OnceMQ ÷ that | OnceMQ ÷ the limit |",
        "|---|---:|---|---:|---:|",
    ]
    shown_bars = []
    for workload, rows in groups:
        ours, best, limit = ours_of(rows), best_peer(rows), limit_of(rows)
        if ours is None or best is None:
            continue
        times = ours.times(best)
        peer = f"{best.system.name}, {rate(best):,.0f}"
        bare = "" if limit is None else f"{ours.times(limit).median:.2f}"
        figures = f"{rate(ours):,.0f} | {peer} | **{times.median:.2f}** ({times.low:.2f} to "
        lines.append(f"| {titled(workload)} | {figures}{times.high:.2f}) | {bare} |")
        kind = Kind.OURS if times.median >= 1 else Kind.BEHIND
        told = f"{times.median:.2f} x {best.system.name}"
        shown_bars.append(Bar(workload.short, times, told, kind))
    if not shown_bars:
        return []
    title = "OnceMQ against the fastest peer: to the right it is ahead, to the left behind"
    (charts / OVERVIEW).write_text(overview(title, shown_bars), encoding="utf-8")
    return ["### In short", f"![{title}]({charts.name}/{OVERVIEW})", "\n".join(lines)]


def _goals_told(groups: Sequence[Group]) -> str:
    lines = ["### Goals", "", "| goal | nearest to it | found | |", "|---|---|---:|---|"]
    for one in judged(groups):
        times = shown(one.times)
        lines.append(f"| {one.goal} | {one.nearest} | {times} | {one.verdict.value} |")
    return "\n".join([*lines, "", "### Every workload", "", BUDGET])


# --- One workload --------------------------------------------------------------------------------


def chart(title: str, rows: Sequence[Row]) -> str:
    """The bars of those that were measured, the fastest first."""
    found = [
        Bar(named(row), row.messages_per_s, f"{rate(row):,.0f}", _kind(row))
        for row in rows
        if not row.absent
    ]
    return bars(f"{title}: messages/s", found)


def _kind(row: Row) -> Kind:
    if is_ours(row):
        return Kind.OURS
    return Kind.LIMIT if row.system.is_limit else Kind.PEER


def _table_told(rows: Sequence[Row]) -> str:
    lines = [f"| | {' | '.join(HEADINGS)} |", "|---|" + "---:|" * len(HEADINGS)]
    for row in rows:
        told = cells(row, rows)
        if is_ours(row):
            told[0] = f"**{told[0]}**"
        lines.append(f"| {' | '.join(told)} |")
    return "\n".join(lines)


def _folded(title: str, text: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{text}\n\n</details>"


# --- How durable each is -------------------------------------------------------------------------


def _settings_told(found: Found) -> str:
    measured = {row.system.name for row in found.rows if not row.absent}
    seen = witnessed(found.seen)
    lines = [
        "### What each system does before it answers",
        "",
        f"*Synced* is what strace saw of {CALLS} calls of each kind: in how many a sync of the "
        "system's own processes ended between the call and its answer, and how many syncs there "
        "were for each call.",
        "",
        "| | settings | synced |",
        "|---|---|---|",
    ]
    lines += [
        f"| {s.name} | {s.durability} | {seen.get(s.name, 'not watched')} |"
        for s in SYSTEMS
        if s.name in measured
    ]
    told = [f"- {each}" for each in absences(found.rows)]
    return "\n".join([*lines, *([""] if told else []), *told])
