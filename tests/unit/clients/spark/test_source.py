"""Reading a queue: what is there, what a transaction has locked, and filters for the node."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest

import oncemq
from clients.spark import source
from clients.spark.rows import BINARY_SCHEMA
from clients.spark.source import LockedList, lock_list, narrower, parts_of, reader_for
from idl.mq import mqAttribute, mqSelection

datasource = pytest.importorskip("pyspark.sql.datasource")
ANY = mqSelection(0, 0, ())
HEADERS = {"key", "priority", "group"}


@pytest.fixture
def mq(monkeypatch: pytest.MonkeyPatch) -> Iterator[oncemq.Connection]:
    """A node in this process, to which all options lead."""
    with oncemq.connect("memory:") as connection:
        monkeypatch.setattr(source, "connection_of", lambda *_: connection)
        yield connection


def rows(reader: Any) -> list[list[bytes]]:
    """The payloads of each partition."""
    return [
        [value.as_py() for batch in reader.read(pickled(each)) for value in batch["value"]]
        for each in reader.partitions()
    ]


def pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def browsing(**options: str) -> Any:
    return pickled(reader_for({"queue": "q", **options}, BINARY_SCHEMA))


def test_a_look_at_a_queue_takes_nothing(mq: oncemq.Connection) -> None:
    mq.queue("q").put_many([b"%d" % n for n in range(100)])
    reader = browsing(partitions="4")
    for _ in range(2):
        found = rows(reader)
        assert [len(each) for each in found] == [25, 25, 25, 25]
        assert [value for each in found for value in each] == [b"%d" % n for n in range(100)]
    assert len(list(mq.queue("q").browse(limit=None))) == 100


def test_an_empty_queue_is_one_empty_partition(mq: oncemq.Connection) -> None:
    assert rows(browsing()) == [[]]
    assert rows(browsing(maxMessages="5")) == [[]]


def test_a_look_sees_what_was_there_when_it_was_planned(
    mq: oncemq.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "AT_ONCE", 3)
    mq.queue("q").put_many([b"1", b"2", b"3", b"4", b"5"])
    reader = browsing(partitions="2")
    planned = reader.partitions()
    mq.queue("q").put(b"later")
    assert mq.queue("q").get() is not None
    found = [v.as_py() for each in planned for batch in reader.read(each) for v in batch["value"]]
    assert found == [b"2", b"3", b"4", b"5"]


def test_of_the_keys_that_were_there_a_look_sees_those_that_can_be_had_when_it_reads(
    mq: oncemq.Connection,
) -> None:
    """The rule in the guide: the plan fixes the first key and the last, and locks nothing."""
    queue = mq.queue("q")
    queue.put_many([b"before", b"first", b"held", b"last"])
    outside, first, inside = (mq.begin(60.0) for _ in range(3))
    for tx, payload in ((outside, b"before"), (first, b"first"), (inside, b"held")):
        taken = queue.get(tx=tx)
        assert taken is not None
        assert taken.payload == payload
    first.rollback()
    reader = browsing(partitions="2")
    planned = [pickled(each) for each in reader.partitions()]

    def seen() -> list[bytes]:
        return [
            value.as_py() for each in planned for batch in reader.read(each) for value in batch[0]
        ]

    assert seen() == [b"first", b"last"]
    outside.rollback()
    inside.rollback()
    queue.put(b"behind")
    assert seen() == [b"first", b"held", b"last"]
    assert [each.payload for each in queue.get_many(2)] == [b"before", b"first"]
    assert seen() == [b"held", b"last"]


def test_a_selection_is_made_by_the_node(mq: oncemq.Connection) -> None:
    for n in range(20):
        message = oncemq.Message(
            b"%d" % n, priority=n % 3, group=n % 2, attributes=(("n", str(n)),)
        )
        mq.queue("q").put(message)
    assert rows(browsing(group="1", priorityMin="2")) == [[b"5", b"11", b"17"]]
    assert rows(browsing(attributes="n=4", partitions="1")) == [[b"4"]]
    assert rows(browsing(group="1", maxMessages="3", partitions="2")) == [[b"1"], [b"3", b"5"]]


# --- Lists of a transaction


def test_a_locked_list_is_read_as_often_as_wanted(
    mq: oncemq.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "LIST_MESSAGES_MAX", 4)
    monkeypatch.setattr(source, "AT_ONCE", 3)
    mq.queue("q").put_many([b"%d" % n for n in range(11)])
    gtrid = mq.deciding().begin()
    locked: LockedList = pickled(lock_list(mq, gtrid, "r1", "q", ANY, 10))
    assert locked.parts == (("r1.1", 4), ("r1.2", 4), ("r1.3", 2))
    assert (locked.messages, locked.branches) == (10, ("r1.1", "r1.2", "r1.3"))
    given = {"queue": "q", "transaction": locked.otid, "listname": locked.text, "partitions": "3"}
    reader: Any = pickled(reader_for(given, BINARY_SCHEMA))
    for _ in range(2):
        found = rows(reader)
        assert [len(each) for each in found] == [3, 3, 4]
        assert [value for each in found for value in each] == [b"%d" % n for n in range(10)]
    assert [message.payload for message in mq.queue("q").browse()] == [b"10"]


def test_locking_takes_what_there_is_and_leaves_no_empty_branch(mq: oncemq.Connection) -> None:
    gtrid = mq.deciding().begin()
    assert lock_list(mq, gtrid, "r1", "q", ANY, 10).parts == ()
    mq.queue("q").put_many([b"1", b"2"])
    assert lock_list(mq, gtrid, "r2", "q", ANY, 10).parts == (("r2.1", 2),)
    assert [branch.deleted for branch in mq.admin().listBranches()] == [2]


def test_a_list_survives_being_an_option() -> None:
    assert parts_of("") == ()
    assert parts_of("r1.1:50000,r1.2:7") == (("r1.1", 50_000), ("r1.2", 7))


# --- Filters


@pytest.mark.parametrize(
    ("wanted", "narrowed", "is_enough"),
    [
        (datasource.EqualTo(("group",), 3), mqSelection(3, 0, ()), True),
        (datasource.GreaterThanOrEqual(("priority",), 5), mqSelection(0, 5, ()), True),
        (datasource.GreaterThan(("priority",), 5), mqSelection(0, 6, ()), True),
        (datasource.GreaterThan(("priority",), -9), mqSelection(0, 0, ()), True),
        (datasource.EqualTo(("priority",), 5), mqSelection(0, 5, ()), False),
    ],
)
def test_filters_on_headers_narrow_the_selection(
    wanted: Any, narrowed: mqSelection, is_enough: bool
) -> None:
    assert narrower(ANY, wanted, HEADERS) == (narrowed, is_enough)


@pytest.mark.parametrize(
    "wanted",
    [
        datasource.EqualTo(("group",), 0),
        datasource.EqualTo(("group",), -1),
        datasource.EqualTo(("group",), 70_000),
        datasource.EqualTo(("group",), None),
        datasource.EqualTo(("group", "x"), 3),
        datasource.GreaterThan(("group",), 3),
        datasource.GreaterThan(("priority",), 65_535),
        datasource.LessThan(("priority",), 3),
        datasource.EqualTo(("sender",), "me"),
        datasource.Not(datasource.EqualTo(("group",), 3)),
    ],
)
def test_other_filters_are_left_to_spark(wanted: Any) -> None:
    assert narrower(ANY, wanted, HEADERS) is None


def test_a_filter_adds_to_the_options_and_never_widens_them() -> None:
    chosen = mqSelection(3, 5, (mqAttribute("a", "b"),))
    lower = datasource.GreaterThanOrEqual(("priority",), 2)
    assert narrower(chosen, lower, HEADERS) == (chosen, True)
    assert narrower(chosen, datasource.EqualTo(("group",), 4), HEADERS) is None
    assert narrower(chosen, datasource.EqualTo(("group",), 3), {"priority"}) is None


def test_only_the_reader_that_was_asked_for_has_filters(mq: oncemq.Connection) -> None:
    plain = browsing()
    assert type(plain).pushFilters is datasource.DataSourceReader.pushFilters
    mq.queue("q").put_many([oncemq.Message(b"%d" % n, group=n % 2 + 1) for n in range(4)])
    reader = browsing(pushFilters="true")
    left = datasource.EqualTo(("sender",), "me")
    assert reader.pushFilters([datasource.EqualTo(("group",), 2), left]) == [left]
    assert rows(pickled(reader)) == [[b"1", b"3"]]
