"""The profile: which part counts where, and the table on the page."""

from __future__ import annotations

from benchmarks.profiling import BEGIN, END, PAGE, SYSTEM, place_of, told, with_table


def test_parts_are_counted_by_program_and_both_nodes_as_one() -> None:
    assert place_of("coordinator", "storage") == "coordinator"
    assert place_of("second node", "storage") == place_of("node", "storage") == "node: storage"
    assert place_of("client", "marshalling and dispatch") == "client: frames and marshalling"
    assert place_of("client", "the client's library") == "client: all else"
    assert place_of("second node", SYSTEM) == "node: the system's calls"
    assert place_of("coordinator", SYSTEM) == "coordinator"


def test_a_part_that_a_work_does_not_have_is_left_empty() -> None:
    two = {"node: storage": 2.0, "coordinator": 3.0, "on the clock": 9.0}
    table = told({"put": {"node: storage": 1234.4, "on the clock": 8.0}, "two": two})
    assert table.splitlines() == [
        "| µs | put | two |",
        "|---|---:|---:|",
        "| node: storage | 1,234 | 2 |",
        "| coordinator |  | 3 |",
        "| on the clock | 8 | 9 |",
    ]


def test_the_page_keeps_the_words_around_the_table() -> None:
    page = f"before\n{BEGIN}\nold\n{END}\nafter"
    assert with_table(page, "new") == f"before\n{BEGIN}\nnew\n{END}\nafter"
    assert BEGIN in PAGE.read_text(encoding="utf-8")
