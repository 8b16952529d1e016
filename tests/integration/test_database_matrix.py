"""The table of the guide on databases: every cell has a test, and every test named here exists.

The cells are written a second time, each with the tests that show it, so that neither the guide nor
the tests can change alone. A dash stands for what cannot happen there.
"""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

HERE = Path(__file__).parent
GUIDE = HERE.parents[1] / "docs" / "guide" / "databases.md"

ENLIST, MARKED, MARIADB = "test_database_enlist", "test_database_marked", "test_mariadb_enlist"
ALCHEMY, POOLS, RECOVERY = "test_database_sqlalchemy", "test_pools", "test_database_recovery"
MARIADB_RECOVERY, PROCESSES = "test_mariadb_recovery", "test_database_processes"
DIES = "test_whenever_the_application_dies_row_and_message_agree"
OFF = f"{MARKED}.test_postgresql_with_prepared_transactions_off_takes_part_so"
ASKED = f"{MARKED}.test_postgresql_can_be_asked_to_take_part_so"
BENEATH = f"{MARKED}.test_postgresql_does_so_beneath_sqlalchemy_and_beside_others"
REFUSES = f"{MARKED}.test_postgresql_that_does_so_refuses_the_same"

COLUMNS = (
    "psycopg 3, PostgreSQL with `max_prepared_transactions` > 0",
    "psycopg 3, PostgreSQL with 0, as it comes",
    "PyMySQL, MariaDB from 10.5 on",
    "sqlite3",
)
BOTH = "test_a_row_and_a_message_are_there_together"
MANY = "test_a_message_that_was_got_and_two_databases_end_together"

# What a cell says, and the tests that show it, in the order of the columns.
CELLS: dict[str, tuple[tuple[str, str], ...]] = {
    "takes part": (
        ("by two-phase commit", f"{ENLIST}.{BOTH}"),
        ("by its own commit", OFF),
        ("by two-phase commit", f"{MARIADB}.{BOTH}"),
        ("by its own commit", f"{MARKED}.{BOTH}"),
    ),
    "how many in one transaction": (
        ("any number, of any servers", f"{ENLIST}.{MANY}"),
        ("one, enlisted before all others", f"{OFF} {BENEATH}"),
        ("any number, of any servers", f"{MARIADB}.{MANY}"),
        (
            "one, enlisted before all others",
            f"{MARKED}.test_a_second_one_is_refused_with_the_reason "
            f"{MARKED}.test_it_comes_first_and_others_follow_its_commit",
        ),
    ),
    "together with two-phase databases": (
        ("yes", f"{ENLIST}.{MANY}"),
        ("yes", BENEATH),
        ("yes", f"{MARIADB}.test_mariadb_postgresql_and_sqlite_are_one_act"),
        ("yes", f"{MARKED}.test_it_comes_first_and_others_follow_its_commit"),
    ),
    "SQLAlchemy `Connection`, `Engine`": (
        (
            "yes",
            f"{ALCHEMY}.test_an_engine_gives_a_connection_for_the_transaction "
            f"{ALCHEMY}.test_a_connection_of_sqlalchemy_takes_part_and_is_free_afterwards",
        ),
        ("yes", BENEATH),
        (
            "yes",
            f"{POOLS}.test_in_mariadb_an_engine_gives_a_connection_for_the_transaction {POOLS}."
            "test_in_mariadb_a_connection_of_sqlalchemy_takes_part_and_is_free_afterwards",
        ),
        ("yes", f"{MARKED}.test_sqlalchemy_takes_part_and_its_commit_is_refused"),
    ),
    "direct `commit()`": (
        (
            "refused by psycopg",
            f"{ENLIST}.test_a_direct_end_is_refused_and_the_transaction_goes_on",
        ),
        ("refused by psycopg", ASKED),
        (
            "refused; on the bare connection by MariaDB",
            f"{MARIADB}.test_a_direct_end_is_refused_and_the_transaction_goes_on "
            f"{MARIADB}.test_what_would_commit_is_refused_also_on_the_bare_connection",
        ),
        (
            "refused; on the bare connection found out",
            f"{MARKED}.test_a_direct_end_is_refused "
            f"{MARKED}.test_a_commit_behind_the_transactions_back_is_found_out",
        ),
    ),
    "a connection with autocommit": (
        ("refused", f"{ENLIST}.test_a_connection_that_commits_by_itself_is_refused"),
        ("refused", REFUSES),
        ("refused", f"{MARIADB}.test_a_connection_that_commits_by_itself_is_refused"),
        (
            "makes no difference",
            f"{MARKED}.test_it_does_not_matter_how_the_connection_begins_transactions",
        ),
    ),
    "a statement that fails": (
        (
            "all is rolled back",
            f"{ENLIST}.test_a_failed_transaction_is_not_prepared_into_nothing",
        ),
        ("all is rolled back", REFUSES),
        (
            "is undone alone; a deadlock rolls back all",
            f"{MARIADB}.test_a_statement_that_failed_is_undone_alone "
            f"{MARIADB}.test_a_deadlock_takes_the_messages_with_it_and_can_be_tried_again",
        ),
        ("is undone alone", f"{MARKED}.test_a_statement_that_failed_is_undone_alone"),
    ),
    "a pool gets it back too early": (
        (
            "all is rolled back",
            f"{POOLS}.test_a_connection_that_the_pool_gets_back_too_early_is_a_rollback "
            f"{ALCHEMY}.test_a_connection_that_a_pool_takes_back_too_early_is_a_rollback",
        ),
        (
            "all is rolled back",
            f"{POOLS}.test_a_connection_that_the_pool_gets_back_too_early_is_a_rollback",
        ),
        (
            "all is rolled back",
            f"{POOLS}.test_in_mariadb_a_connection_that_a_pool_takes_back_too_early_is_a_rollback",
        ),
        ("—", ""),
    ),
    "the server is restarted while prepared": (
        (
            "finished when it is back",
            f"{RECOVERY}.test_a_database_that_died_while_prepared_is_finished_when_it_is_back",
        ),
        ("—", ""),
        (
            "finished when it is back",
            f"{MARIADB}.test_a_server_that_is_restarted_between_vote_and_commit_loses_nothing "
            f"{MARIADB_RECOVERY}."
            "test_a_server_that_died_while_prepared_is_finished_when_it_is_back",
        ),
        ("—", ""),
    ),
    "finished without the application": (
        (
            "yes",
            f"{ENLIST}.{DIES} {PROCESSES}."
            "test_what_a_killed_application_left_prepared_is_finished_without_it",
        ),
        ("yes", "test_database_traps.test_in_postgresql_a_late_mark_finds_the_fence"),
        ("yes", f"{MARIADB}.{DIES}"),
        ("yes", f"{MARKED}.{DIES} {PROCESSES}.test_the_mark_of_a_killed_application_is_found"),
    ),
    "the other way on request": (
        ("`markable=True`", ASKED),
        ("no", OFF),
        ("`markable=True`", f"{MARIADB}.{BOTH}"),
        ("no", f"{MARKED}.test_the_driver_of_sqlite_never_prepares"),
    ),
}


def table_of_the_guide() -> list[list[str]]:
    lines = GUIDE.read_text().splitlines()
    [first] = [at for at, line in enumerate(lines) if line.startswith("| | psycopg 3")]
    rows = []
    for line in lines[first:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return [rows[0], *rows[2:]]


@functools.cache
def names_in(module: str) -> frozenset[str]:
    tree = ast.parse((HERE / f"{module}.py").read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def test_the_guide_says_what_the_tests_show() -> None:
    head, *rows = table_of_the_guide()
    assert head == ["", *COLUMNS]
    expected = [[name, *(text for text, _ in cells)] for name, cells in CELLS.items()]
    assert rows == expected


@pytest.mark.parametrize("row", CELLS)
def test_every_cell_has_tests_and_they_exist(row: str) -> None:
    cells = CELLS[row]
    assert len(cells) == len(COLUMNS)
    for text, names in cells:
        assert bool(names) != (text == "—"), f"{row}: {text!r} has no test"
        for name in names.split():
            module, _, test = name.partition(".")
            assert test.startswith("test_")
            assert test in names_in(module), f"{row}: {text!r}: there is no {name}"
