"""What a node, clients and the coordinator agree on about rows that carry puts."""

from __future__ import annotations

import sqlite3

import pytest

from idl.custody import (
    NOBODY,
    can_carry,
    carried_table,
    creation,
    insertion,
    node_of,
)
from idl.databases import Kind, parse_dsn, table_of


def test_a_secret_opens_the_rows_of_its_digest_which_does_not_tell_it() -> None:
    assert node_of("secret") == node_of("secret") != node_of("other")
    assert len(node_of("secret")) == 32
    # Not even what is no secret at all opens a fence.
    assert node_of("") != NOBODY


@pytest.mark.parametrize(
    ("dsn", "schema", "table"),
    [
        ("postgresql://app@host/shop", "", '"public".oncemq_carried'),
        ("postgresql://app@host/shop", "mine", '"mine".oncemq_carried'),
        ("postgresql://app@host/shop", "oncemq_outcome", '"oncemq_outcome".oncemq_carried'),
        ("sqlite:////srv/shop.db", "", '"main".oncemq_carried'),
    ],
)
def test_the_table_stands_beside_the_one_for_outcomes(dsn: str, schema: str, table: str) -> None:
    assert carried_table(table_of(parse_dsn(dsn), schema)) == table


def test_a_row_and_a_fence_of_one_transaction_cannot_both_be_there() -> None:
    assert (can_carry(Kind.POSTGRESQL), can_carry(Kind.MARIADB)) == (True, False)
    connection = sqlite3.connect(":memory:")
    for _ in range(2):
        connection.execute(creation(Kind.SQLITE, "main.oncemq_outcome"))
    writing = insertion("main.oncemq_outcome", "?")
    connection.execute(writing, ("ab", node_of("secret"), b"puts"))
    with pytest.raises(sqlite3.IntegrityError):
        connection.execute(writing, ("ab", NOBODY, b""))
    connection.close()
