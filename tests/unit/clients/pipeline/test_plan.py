"""A pipeline's file: what is understood, and what is said of everything else, and where."""

from __future__ import annotations

import pytest

from clients.pipeline.keys import TABLES, Mode, Trigger, When, parse_trigger
from clients.pipeline.plan import BadPlan, Plan, Sink, Step, read_plan
from idl.toml_files import parse_toml

WHOLE = """
[pipeline]
name = "billing"
url = "mq://127.0.0.1:7411"
trigger = "5 seconds"
batch_messages = 500
timeout_s = 60
retries = 3

[spark]
master = "local[2,4]"
packages = ["org.example:thing:1"]

[spark.conf]
spark.sql.shuffle.partitions = 2
"spark.executor.memory" = "1g"

[[source]]
queue = "orders-in"
payload = "json"
schema = "id BIGINT, amount DOUBLE"
group = 3
attributes = { country = "DE" }

[[source]]
queue = "rates"

[[step]]
name = "invoices"
sql = "select id, amount * 1.19 as total from orders_in"

[[step]]
name = "large"
function = "billing:large"
cache = true

[[sink]]
queue = "invoices"
from = "invoices"
payload = "json"

[[sink]]
table = "public.large"
database = "books"
"""
SMALL = """
[pipeline]
name = "small"
[[source]]
queue = "a"
[[sink]]
queue = "b"
"""


def _plan(text: str) -> Plan:
    return read_plan(parse_toml(text, "p.toml"))


def _refusal(text: str) -> str:
    with pytest.raises(BadPlan) as refused:
        _plan(text)
    return str(refused.value)


def test_a_whole_file_is_understood() -> None:
    plan = _plan(WHOLE)
    assert (plan.name, plan.mode, plan.trigger) == ("billing", Mode.BATCH, Trigger(When.EVERY, 5))
    assert (plan.batch_messages, plan.timeout_s, plan.retries) == (500, 60.0, 3)
    assert plan.conf == {"spark.sql.shuffle.partitions": "2", "spark.executor.memory": "1g"}
    assert plan.packages == ("org.example:thing:1",)
    assert [source.name for source in plan.sources] == ["orders_in", "rates"]
    assert plan.sources[0].selection == {"group": 3, "attributes": {"country": "DE"}}
    assert plan.steps[1] == Step("large", function="billing:large", is_cached=True)
    assert plan.sinks[0] == Sink("invoices", queue="invoices", payload="json")
    assert plan.sinks[1] == Sink("large", table="public.large", database="books")
    assert [sink.where for sink in plan.sinks] == ["queue invoices", "table public.large"]


def test_without_steps_the_messages_pass_as_they_are() -> None:
    plan = _plan(SMALL)
    assert (plan.steps, plan.sinks[0].view) == ((), "a")
    assert (plan.trigger, plan.batch_messages) == (Trigger(When.AVAILABLE_NOW), 10_000)


@pytest.mark.parametrize(
    ("before", "after", "line", "words"),
    [
        ("[pipeline]", "[pipelin]", 2, "there is no table [pipelin]; did you mean 'pipeline'?"),
        ("batch_messages", "batch_message", 6, "did you mean 'batch_messages'?"),
        ("payload", "paylod", 20, "there is no key 'paylod' in [source]; did you mean 'payload'?"),
        ('name = "billing"', "", 2, "[pipeline] needs name"),
        ('queue = "rates"', "", 25, "[source] needs queue"),
        ('"5 seconds"', '"soon"', 5, "trigger is available-now, once, or a time"),
        ("= 500", "= 0", 6, "batch_messages is a number from 1 to"),
        ("retries = 3", "retries = true", 8, "retries is a number from 0 to 1000"),
        ('"orders-in"', '"a b"', 19, "queue is the name of a queue, not 'a b'"),
        ('"billing:large"', '"billing"', 34, "a function written as 'module:function'"),
        ('name = "large"', 'name = "Rates"', 32, "there is a 'Rates' already"),
        ("cache = true", 'sql = "select 1"', 32, "either sql or function, and not both"),
        ('from = "invoices"', 'from = "invoice"', 39, "nothing here is called 'invoice'"),
        ('database = "books"', "", 42, "needs database"),
        ('database = "books"', 'payload = "json"', 44, "payload goes with queue, not with table"),
        (
            'database = "books"',
            'database = "b"\ndsn = "postgresql://a:secret@h/d"',
            45,
            "the address holds a password",
        ),
        ('schema = "id BIGINT, amount DOUBLE"', "", 18, "needs a schema"),
        ('queue = "rates"', 'queue = "rates"\nschema = "a INT"', 27, "what is in the payload"),
        ('queue = "rates"', 'queue = "7"', 25, "'7' is no name for SQL: add name"),
        ("retries = 3", 'checkpoint = "/c"', 8, "checkpoint goes with mode = 'stream'"),
        ("retries = 3", 'mode = "stream"', 2, "mode = 'stream' needs checkpoint"),
        (
            "retries = 3",
            'mode = "stream"\ncheckpoint = "/c"',
            26,
            "a stream has one [[source]]",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_its_line(
    before: str, after: str, line: int, words: str
) -> None:
    assert before in WHOLE
    told = _refusal(WHOLE.replace(before, after, 1))
    assert told.startswith(f"p.toml:{line}: ")
    assert words in told


def test_a_password_is_not_repeated_in_what_is_said() -> None:
    told = _refusal(
        SMALL.replace('queue = "b"', 'table = "t"\ndatabase = "b"\ndsn = "postgresql://a:hush@h/d"')
    )
    assert "hush" not in told


@pytest.mark.parametrize("missing", ["source", "sink"])
def test_a_pipeline_has_a_beginning_and_an_end(missing: str) -> None:
    text = SMALL.replace('[[source]]\nqueue = "a"' if missing == "source" else "[[sink]]", "#")
    text = text.replace('queue = "b"', "") if missing == "sink" else text
    assert f"add [[{missing}]]" in _refusal(text)


def test_rows_go_to_one_place_once() -> None:
    assert "goes to queue b already" in _refusal(f'{SMALL}[[sink]]\nqueue = "b"\n')


@pytest.mark.parametrize("table", ["source", "pipeline"])
def test_a_table_and_a_list_of_tables_are_not_the_same(table: str) -> None:
    wrong = {"source": ("[[source]]", "[source]"), "pipeline": ("[pipeline]", "[[pipeline]]")}
    assert "write [" in _refusal(SMALL.replace(*wrong[table]))


@pytest.mark.parametrize(
    ("said", "seconds"),
    [("5 seconds", 5), ("1 second", 1), ("250 ms", 0.25), ("2m", 120), ("1.5 hours", 5400)],
)
def test_times_are_written_as_spark_writes_them(said: str, seconds: float) -> None:
    assert parse_trigger(said) == Trigger(When.EVERY, seconds)


def test_every_key_says_what_it_is() -> None:
    assert all(key.words for table in TABLES.values() for key in table.values())
