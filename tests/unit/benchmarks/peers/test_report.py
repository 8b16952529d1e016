"""The report about the peers: what is compared with what, who is judged, and the page."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from benchmarks.measure import Round, Verdict
from benchmarks.peers.clients import Operation
from benchmarks.peers.report import BEGIN, END, best_peer, chart, grouped, judged, write_page
from benchmarks.peers.running import Row
from benchmarks.peers.systems import BY_NAME, LIMIT, OURS
from benchmarks.peers.workloads import DEEP, SHALLOW, Workload

PUT = Workload("W1", Operation.PUT, 10)


def row(name: str, *rates: float, workload: Workload = PUT, absent: str = "") -> Row:
    rounds = [Round(1 / rate, 2 / rate, rate) for rate in rates]
    return Row(workload, BY_NAME[name], rounds, absent)


def test_rows_are_sorted_and_what_is_absent_comes_last() -> None:
    rows = [row("MariaDB", absent="not installed"), row(OURS, 10), row("PostgreSQL", 20)]
    [(_, sorted_rows)] = grouped(rows)
    assert [each.system.name for each in sorted_rows] == ["PostgreSQL", OURS, "MariaDB"]


def test_the_best_peer_is_over_the_network_and_neither_ours_nor_the_limit() -> None:
    rows = [
        row(OURS, 50),
        row(LIMIT, 90),
        row("SQLite", 80),
        row("MariaDB", 20),
        row("ActiveMQ", 9),
    ]
    found = best_peer(rows)
    assert found is not None
    assert found.system.name == "MariaDB"
    assert best_peer([row(OURS, 50), row("MariaDB", absent="gone")]) is None


def test_a_ratio_is_taken_within_each_round() -> None:
    slow_minute = row(OURS, 100, 10).times(row("MariaDB", 50, 5))
    assert (slow_minute.median, slow_minute.low, slow_minute.high) == (2.0, 2.0, 2.0)


def test_a_goal_is_judged_against_each_of_its_peers_that_was_there() -> None:
    rows = [row(OURS, 100, 100), row("PostgreSQL", 90, 120), row("MariaDB", absent="gone")]
    [(text, times, verdict)] = judged(grouped(rows))
    assert "PostgreSQL" in text
    assert (times.low, times.high) == (100 / 120, 100 / 90)
    assert verdict in (Verdict.PERHAPS_MISSED, Verdict.PERHAPS_KEPT)
    slow = [row(OURS, 50), row("PostgreSQL", 90), row("Redis streams", 40)]
    assert [verdict for *_, verdict in judged(grouped(slow))] == [Verdict.MISSED, Verdict.KEPT]


def test_depth_is_judged_against_ourselves() -> None:
    depths = [Workload("W7", Operation.PUT, 10, depth=depth) for depth in (SHALLOW, DEEP)]
    rows = [row(OURS, 100, workload=depths[0]), row(OURS, 79, workload=depths[1])]
    [(_, times, verdict)] = judged(grouped(rows))
    assert times.median == 0.79
    assert verdict is Verdict.MISSED


def test_a_chart_is_a_picture_with_a_bar_for_each_that_was_measured() -> None:
    rows = [row(OURS, 100), row("PostgreSQL, begin … commit", 50), row("MariaDB", absent="gone")]
    picture = ElementTree.fromstring(chart("one < two", rows))
    words = [element.text for element in picture.iter() if element.text and element.text.strip()]
    assert words == ["one < two: messages/s", OURS, "100", "PostgreSQL, begin … commit", "50"]


def test_the_page_keeps_the_words_around_what_is_made_anew(tmp_path: Path) -> None:
    page = tmp_path / "PAGE.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    rows = [row(OURS, 100), row("PostgreSQL", 50)]
    for _ in range(2):
        write_page(grouped(rows), page, tmp_path / "charts", "Made today.")
    text = page.read_text()
    assert text.startswith(f"before\n{BEGIN}\nMade today.")
    assert text.endswith(f"{END}\nafter\n")
    assert "old" not in text
    assert text.count("| **OnceMQ** | 100 |") == 1
    assert "![W1 one message, one client: put](charts/peers-1.svg)" in text
    assert (tmp_path / "charts" / "peers-1.svg").exists()
