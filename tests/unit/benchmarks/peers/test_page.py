"""The peers' part of the page, and its charts."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from benchmarks.measure import Spread
from benchmarks.peers.charts import Bar, Kind, overview
from benchmarks.peers.figures import Found
from benchmarks.peers.operations import Operation
from benchmarks.peers.page import BEGIN, END, chart, write_page
from benchmarks.peers.systems import LIMIT, OURS
from benchmarks.peers.witness import Seen
from tests.unit.benchmarks.peers.test_report import row

ABSENT = row("MariaDB", absent="gone")


def words_of(picture: str) -> list[str]:
    found = ElementTree.fromstring(picture).iter()
    return [element.text for element in found if element.text and element.text.strip()]


def test_a_chart_is_a_picture_with_a_bar_for_each_that_was_measured() -> None:
    picture = chart("one < two", [row(OURS, 100), row("PostgreSQL, begin … commit", 50), ABSENT])
    peer = ["PostgreSQL, begin … commit", "50"]
    assert words_of(picture) == ["one < two: messages/s", OURS, "100", *peer]


def test_in_the_overview_who_is_ahead_stands_to_the_right_of_who_is_not() -> None:
    ahead = Bar("W1", Spread(2.0, 2.0, 2.0), "2 x", Kind.OURS)
    behind = Bar("W2", Spread(0.5, 0.5, 0.5), "0.5 x", Kind.BEHIND)
    picture = ElementTree.fromstring(overview("both", [ahead, behind]))
    colours = [kind.value for kind in Kind]
    boxes = [each for each in picture.iter() if each.get("fill", "") in colours]
    [right, left] = [float(each.get("x", "")) for each in boxes]
    [long, wide] = [float(each.get("width", "")) for each in boxes]
    assert left + wide == right
    assert long == wide


def test_the_page_keeps_the_words_around_what_is_made_anew(tmp_path: Path) -> None:
    page, charts = tmp_path / "PAGE.md", tmp_path / "charts"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    charts.mkdir()
    (charts / "peers-old.svg").touch()
    seen = [Seen(OURS, Operation.PUT, 10, 10, 1.0)]
    found = Found([row(OURS, 100), row("PostgreSQL", 50), row(LIMIT, 200), ABSENT], seen)
    for _ in range(2):
        write_page(found, page, charts, "Made today.")
    text = page.read_text()
    assert text.startswith(f"before\n{BEGIN}\nMade today.")
    assert text.endswith(f"{END}\nafter\n")
    assert "old" not in text
    assert text.count("| **OnceMQ** | 100 |") == 1
    assert "| W1 one message, one client: put | 100 | PostgreSQL, 50 | **2.00**" in text
    assert "| put all (1.0) |" in text
    assert "- MariaDB was absent from W1 put: gone" in text
    assert "![W1 one message, one client: put](charts/peers-w1-put-100.svg)" in text
    names = sorted(each.name for each in charts.iterdir())
    assert names == ["peers-overview.svg", "peers-w1-put-100.svg"]


def test_a_page_without_peers_has_no_overview(tmp_path: Path) -> None:
    page = tmp_path / "PAGE.md"
    page.write_text(f"{BEGIN}{END}")
    write_page(Found([row(OURS, 100)]), page, tmp_path / "charts", "Made today.")
    assert "In short" not in page.read_text()
