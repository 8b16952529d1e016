"""Options: each is known, has a type and a place in the reference, and a wrong one is told."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from clients.spark.errors import OptionError
from clients.spark.options import OPTIONS, Option, Options, Role, read_options

REFERENCE = Path(__file__).resolve().parents[4] / "docs" / "guide" / "spark-options.md"
SHORT = {
    Role.SINK: "write",
    Role.STREAM_SINK: "writeStream",
    Role.BROWSE: "read",
    Role.TAKE: "tx.read",
    Role.STREAM_SOURCE: "readStream",
}


def reference_row(option: Option) -> str:
    """The option as its row in the reference says it."""
    where = "all" if len(option.roles) == len(Role) else ", ".join(map(SHORT.get, option.roles))  # type: ignore[arg-type]
    default = option.default
    shown = "**required**" if option.is_required else ""
    if not option.is_required and default not in (None, "", ()):
        shown = f"`{str(default).lower() if isinstance(default, bool) else default}`"
    return f"| `{option.name}` | {where} | {option.kind.told} | {shown} | {option.help} |"


def test_the_reference_says_what_the_table_says() -> None:
    rows = [line for line in REFERENCE.read_text().splitlines() if line.startswith("| `")]
    rows = [row for row in rows if row.count("|") == 6]
    assert rows == [reference_row(each) for each in OPTIONS if not each.is_internal]


def test_every_option_has_its_field_and_every_field_its_option() -> None:
    assert {each.field for each in OPTIONS} == {each.name for each in fields(Options)}
    assert len({each.name.lower() for each in OPTIONS}) == len(OPTIONS)


def test_names_are_known_in_any_case() -> None:
    found = read_options(
        {"QUEUE": "q", "payloadformat": "JSON", "txnappid": "a", "txnVersion": "7"}, Role.SINK
    )
    assert (found.queue, found.payload_format, found.txn_app_id, found.txn_version) == (
        "q",
        "json",
        "a",
        7,
    )


def test_what_spark_adds_is_passed_over() -> None:
    given = {"queue": "q", "checkpointLocation": "c", "queryname": "n", "path": "x"}
    assert read_options(given, Role.STREAM_SINK) == Options(queue="q")


@pytest.mark.parametrize(
    ("role", "given", "told"),
    [
        (Role.SINK, {"quue": "q"}, 'did you mean "queue"?'),
        (Role.SINK, {"queue": "q", "payload_format": "json"}, 'did you mean "payloadFormat"?'),
        (Role.SINK, {"queue": "q", "zzz": "1"}, 'the option "zzz" is unknown for a batch write'),
        (Role.SINK, {}, 'the option "queue" is missing'),
        (Role.STREAM_SOURCE, {"queue": "q"}, 'the option "consumer" is missing'),
        (Role.SINK, {"queue": "q", "consumer": "c"}, "belongs to a streaming read, not to a batch"),
        (Role.SINK, {"queue": "a b"}, "cannot be 'a b': it is 1 to 128 letters"),
        (Role.SINK, {"queue": "q", "url": "memory:"}, "Spark's tasks are other processes"),
        (Role.SINK, {"queue": "q", "url": "file:/d"}, "start one with `oncemq up`"),
        (Role.SINK, {"queue": "q", "headers": "maybe"}, "it is true or false"),
        (Role.SINK, {"queue": "q", "payloadFormat": "avro"}, "binary or json or msgpack or arrow"),
        (Role.SINK, {"queue": "q", "timeout": "nan"}, "it is a positive number of seconds"),
        (Role.SINK, {"queue": "q", "timeout": "0"}, "it is a positive number of seconds"),
        (Role.SINK, {"queue": "q", "txnAppId": "a"}, "txnAppId and txnVersion go together"),
        (Role.SINK, {"queue": "q", "tlsKey": "k"}, "need tlsAuthority"),
        (Role.BROWSE, {"queue": "q", "maxMessages": "0"}, "it is a whole number from 1 on"),
        (Role.BROWSE, {"queue": "q", "group": "70000"}, "a whole number from 0 to 65,535"),
        (Role.BROWSE, {"queue": "q", "group": "1.5"}, "a whole number from 0 to 65,535"),
        (Role.BROWSE, {"queue": "q", "attributes": "a"}, "pairs as in name=value,name=value"),
        (Role.BROWSE, {"queue": "q", "schema": "a INT"}, "say payloadFormat json"),
        (Role.BROWSE, {"queue": "q", "badPayloadColumn": "b"}, 'only with onBadPayload "null"'),
    ],
)
def test_a_wrong_option_is_told_in_a_sentence(role: Role, given: dict[str, str], told: str) -> None:
    with pytest.raises(OptionError, match=re.escape(told)):
        read_options(given, role)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("attributes", "a=1, b=x=y", (("a", "1"), ("b", "x=y"))),
        ("maxMessages", "100000", 100_000),
        ("headers", "TRUE", True),
        ("onBadPayload", "null", "null"),
        ("timeout", "2.5", 2.5),
        ("partitions", "8", 8),
    ],
)
def test_a_text_becomes_its_value(name: str, text: str, value: Any) -> None:
    option = next(each for each in OPTIONS if each.name == name)
    assert getattr(read_options({"queue": "q", name: text}, Role.BROWSE), option.field) == value
