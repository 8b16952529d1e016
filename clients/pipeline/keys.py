"""The keys of a pipeline's file: for each table, what a key's value must be, and its value.

Pure: a value that was written becomes one that can be used, or a `ValueError`. What the keys mean
together is for `plan.py` to say.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from idl.databases import parse_dsn
from idl.mq import check_queue_name

FORMATS = ("binary", "json", "msgpack", "arrow")
COUNT_MAX = 2**31 - 1
VIEW = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._\-]{0,99}")
_TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_$]*(\.[A-Za-z_][A-Za-z0-9_$]*)?")
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_EVERY = re.compile(r"(\d+(?:\.\d+)?) *(ms|milliseconds?|s|seconds?|m|minutes?|h|hours?)")
_UNITS_S = {"m": 60.0, "h": 3600.0, "s": 1.0}


class Mode(enum.StrEnum):
    """How batches are made."""

    # Each transaction gets messages itself; the queue alone knows how far it is.
    BATCH = "batch"
    # Spark's structured streaming: reservations, and a checkpoint.
    STREAM = "stream"


class When(enum.Enum):
    """When there is a next batch."""

    ONCE = "once"
    AVAILABLE_NOW = "available-now"
    EVERY = "every"


@dataclass(frozen=True)
class Trigger:
    """When there is a next batch, and how long to wait where that is a matter of time."""

    when: When
    every_s: float = 0.0

    def __str__(self) -> str:
        return f"{self.every_s:g} seconds" if self.when is When.EVERY else self.when.value


class Key(NamedTuple):
    """A key of a table: what its value must be, in words, and as a check that returns it."""

    words: str
    check: Callable[[Any], Any]
    is_required: bool = False
    # Then what was written is not repeated to whoever reads the error.
    may_hold_secret: bool = False


def _text(said: Any) -> str:
    if not isinstance(said, str) or not said.strip():
        raise ValueError
    return said


def _matching(pattern: re.Pattern[str]) -> Callable[[Any], str]:
    def check(said: Any) -> str:
        if not isinstance(said, str) or not pattern.fullmatch(said):
            raise ValueError
        return said

    return check


def _one_of(*allowed: str) -> Callable[[Any], str]:
    def check(said: Any) -> str:
        if said not in allowed:
            raise ValueError
        return str(said)

    return check


def _count(least: int, most: int = COUNT_MAX) -> Callable[[Any], int]:
    def check(said: Any) -> int:
        if isinstance(said, bool) or not isinstance(said, int) or not least <= said <= most:
            raise ValueError
        return said

    return check


def _seconds(said: Any) -> float:
    if isinstance(said, bool) or not isinstance(said, int | float) or not 1 <= said <= 86400:
        raise ValueError
    return float(said)


def _switch(said: Any) -> bool:
    if not isinstance(said, bool):
        raise ValueError
    return said


def _texts(said: Any) -> tuple[str, ...]:
    if not isinstance(said, list):
        raise ValueError
    return tuple(_text(each) for each in said)


def _queue(said: Any) -> str:
    if not isinstance(said, str):
        raise ValueError
    return check_queue_name(said)


def _dsn(said: Any) -> str:
    return parse_dsn(_text(said)).text


def _pairs(said: Any) -> dict[str, str]:
    if not isinstance(said, dict) or not said:
        raise ValueError
    return {name: _text(value) for name, value in said.items()}


def _settings(said: Any) -> dict[str, str]:
    """Spark's own settings; `spark.sql.x = 1` without quotes means the same as with them."""
    if not isinstance(said, dict):
        raise ValueError
    found: dict[str, str] = {}
    for name, value in said.items():
        if isinstance(value, dict):
            found |= {f"{name}.{key}": each for key, each in _settings(value).items()}
        elif isinstance(value, bool):
            found[name] = str(value).lower()
        elif isinstance(value, str | int | float):
            found[name] = str(value)
        else:
            raise ValueError
    return found


def parse_trigger(said: Any) -> Trigger:
    """The trigger that is written so; raises `ValueError`."""
    if said in (When.ONCE.value, When.AVAILABLE_NOW.value):
        return Trigger(When(said))
    found = _EVERY.fullmatch(said) if isinstance(said, str) else None
    if found is None:
        raise ValueError
    unit = 0.001 if found[2].startswith(("ms", "milli")) else _UNITS_S[found[2][0]]
    return Trigger(When.EVERY, float(found[1]) * unit)


_QUEUE = Key("the name of a queue", _queue)
_PAYLOAD = Key("binary, json, msgpack or arrow", _one_of(*FORMATS))
_AVIEW = Key("a name of letters, digits and _", _matching(VIEW))
_TEXT = Key("a text", _text)

# fmt: off
TABLES: dict[str, dict[str, Key]] = {
    "pipeline": {
        "name": Key("a name of letters, digits, '.', '_' and '-'", _matching(_NAME), True),
        "url": Key("the url of a node, mq://HOST:PORT", _matching(re.compile(r"mq://\S+"))),
        "mode": Key("batch or stream", lambda said: Mode(_one_of(*Mode)(said))),
        "trigger": Key("available-now, once, or a time such as '5 seconds'", parse_trigger),
        "batch_messages": Key(f"a number from 1 to {COUNT_MAX}", _count(1)),
        "timeout_s": Key("a number of seconds from 1 to 86400", _seconds),
        "retries": Key("a number from 0 to 1000", _count(0, 1000)),
        "consumer": Key("a name of letters, digits, '.', '_' and '-'", _matching(_NAME)),
        "checkpoint": Key("a directory", _text),
    },
    "spark": {
        "master": Key("a master URL of Spark", _text),
        "packages": Key("a list of Maven coordinates", _texts),
        "conf": Key("a table of Spark's settings", _settings),
    },
    "source": {
        "queue": _QUEUE._replace(is_required=True),
        "name": _AVIEW,
        "payload": _PAYLOAD,
        "schema": Key("columns as in SQL: 'id BIGINT, customer STRING'", _text),
        "group": Key("a number from 1 to 65535", _count(1, 65535)),
        "priority_min": Key("a number from 0 to 65535", _count(0, 65535)),
        "attributes": Key("a table of texts", _pairs),
        "partitions": Key("a number from 1 to 10000", _count(1, 10_000)),
    },
    "step": {
        "name": _AVIEW._replace(is_required=True),
        "sql": _TEXT,
        "function": Key("a function written as 'module:function'", _matching(_FUNCTION)),
        "cache": Key("true or false", _switch),
    },
    "sink": {
        "from": _AVIEW,
        "queue": _QUEUE,
        "payload": _PAYLOAD,
        "table": Key("the name of a table, with its schema or without", _matching(_TABLE)),
        "database": Key("the name by which the coordinator knows a database", _matching(_NAME)),
        "dsn": Key("the address of the database, without a password", _dsn, False, True),
    },
}
# fmt: on
LISTS = ("source", "step", "sink")
