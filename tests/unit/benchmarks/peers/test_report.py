"""The report about the peers: what is compared with what, and who is judged."""

from __future__ import annotations

from benchmarks.measure import Round, Verdict
from benchmarks.peers.operations import Operation
from benchmarks.peers.report import (
    HEADINGS,
    best_peer,
    cells,
    grouped,
    judged,
    limit_of,
    ours_of,
    rounds_told,
    witnessed,
)
from benchmarks.peers.running import Row
from benchmarks.peers.systems import BY_NAME, DEEP, FILES, LIMIT, OURS, SHALLOW, SPARK_LIMIT
from benchmarks.peers.witness import Seen
from benchmarks.peers.workloads import WORKLOADS, Workload

PUT = WORKLOADS[0]


def row(name: str, *rates: float, workload: Workload = PUT, absent: str = "") -> Row:
    rounds = [Round(1 / rate, 2 / rate, rate, 7) for rate in rates]
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
        row(FILES, 80),
        row("MariaDB", 20),
        row("ActiveMQ", 9),
    ]
    found = best_peer(rows)
    assert found is not None
    assert found.system.name == "MariaDB"
    assert best_peer([row(OURS, 50), row("MariaDB", absent="gone")]) is None


def test_nobody_is_judged_by_a_peer_that_does_not_sync() -> None:
    get = WORKLOADS[1]
    quick = row("RabbitMQ, classic", 99, workload=get)
    rows = [row(OURS, 50, workload=get), quick, row("MariaDB", 20, workload=get)]
    found = best_peer(rows)
    assert found is not None
    assert found.system.name == "MariaDB"
    assert [one.nearest for one in judged(grouped(rows))] == ["MariaDB"]
    assert cells(quick, rows)[0] == "RabbitMQ, classic (not synced)"


def test_the_limit_is_that_of_the_workload() -> None:
    found = limit_of([row(OURS, 50), row(SPARK_LIMIT, 90)])
    assert found is not None
    assert found.system.name == SPARK_LIMIT
    assert limit_of([row(OURS, 50), row(LIMIT, absent="gone")]) is None


def test_oncemq_itself_stands_for_us_before_its_variants() -> None:
    found = ours_of([row("OnceMQ, two nodes", 90), row(OURS, 50)])
    assert found is not None
    assert found.system.name == OURS
    assert ours_of([row(OURS, absent="gone")]) is None


def test_a_ratio_is_taken_within_each_round() -> None:
    slow_minute = row(OURS, 100, 10).times(row("MariaDB", 50, 5))
    assert (slow_minute.median, slow_minute.low, slow_minute.high) == (2.0, 2.0, 2.0)


def test_a_goal_is_judged_against_the_strongest_of_its_peers_that_was_there() -> None:
    rows = [row(OURS, 100, 100), row("PostgreSQL", 90, 120), row("MariaDB", absent="gone")]
    [one] = judged(grouped([*rows, row("ActiveMQ", 5, 5)]))
    assert one.nearest == "PostgreSQL"
    assert (one.times.low, one.times.high) == (100 / 120, 100 / 90)
    assert one.verdict in (Verdict.PERHAPS_MISSED, Verdict.PERHAPS_KEPT)
    [slow] = judged(grouped([row(OURS, 50), row("PostgreSQL", 90), row("Redis streams", 40)]))
    assert slow.verdict is Verdict.MISSED
    assert not slow.is_good


def test_depth_is_judged_against_ourselves() -> None:
    [depth] = [each for each in WORKLOADS if each.operation is Operation.PUT_AND_GET]
    rows = [row(SHALLOW, 100, workload=depth), row(DEEP, 79, workload=depth)]
    [one] = judged(grouped(rows))
    assert one.times.median == 0.79
    assert one.verdict is Verdict.MISSED


def test_a_system_that_did_not_sync_is_told_with_how_often() -> None:
    seen = [
        Seen("Kafka", Operation.PUT, 10, 10, 2.0),
        Seen("Kafka", Operation.GET, 10, 3, 0.3),
    ]
    assert witnessed(seen) == {"Kafka": "put all (2.0), get 3 of 10 (0.3)"}


def test_a_row_says_of_how_many_calls_and_a_table_of_how_many_rounds_it_is() -> None:
    rows = [row("MariaDB", absent="too slow"), row(OURS, 50, 60)]
    assert [each[3] for each in (cells(one, rows) for one in rows)] == ["", "7"]
    assert [rounds_told(rows), rounds_told([row(OURS, 1)])] == ["2 rounds", "1 round"]
    assert {len(cells(one, rows)) for one in rows} == {len(HEADINGS) + 1}
