"""What a pipeline is to do: the plan that is read from its file.

    [pipeline]   its name, how it is run, how large a batch is
    [spark]      where Spark runs, and with what
    [[source]]   a queue from which each batch gets messages
    [[step]]     SQL, or a Python function: what is made of them, one after the other
    [[sink]]     a queue into which, or a table of a database into which, each batch goes

What cannot be is refused with the file, the line and, for a misspelt name, the one that was
probably meant. The keys of each table are in `keys.py`. It reads no file and knows no Spark.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clients.pipeline.keys import TABLES, VIEW, Key, Mode, Trigger, When
from idl.mapping import InvalidValue
from idl.toml_files import BadFile, TomlText, suggestion

BATCH_MESSAGES = 10_000
TIMEOUT_S = 3600.0
RETRIES = 8
AVAILABLE_NOW = Trigger(When.AVAILABLE_NOW)


class BadPlan(BadFile):
    """The file says what cannot be done; the message says where."""


@dataclass(frozen=True)
class Source:
    """A queue, what its messages are, and which of them are meant."""

    queue: str
    name: str
    payload: str = "binary"
    schema: str = ""
    # Of the options of `JobTransaction.read`: those that were said.
    selection: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Step:
    """What is made, under this name, of sources and of steps before it."""

    name: str
    sql: str = ""
    function: str = ""
    is_cached: bool = False


@dataclass(frozen=True)
class Sink:
    """Where the rows of a view go: a queue, or a table of a database."""

    view: str
    queue: str = ""
    payload: str = "binary"
    table: str = ""
    database: str = ""
    dsn: str = ""

    @property
    def where(self) -> str:
        """The queue or table, in words."""
        return f"queue {self.queue}" if self.queue else f"table {self.table}"


@dataclass(frozen=True)
class Plan:
    """A pipeline, checked as far as that can be done without Spark and servers."""

    name: str
    sources: tuple[Source, ...]
    steps: tuple[Step, ...]
    sinks: tuple[Sink, ...]
    url: str = ""
    mode: Mode = Mode.BATCH
    trigger: Trigger = AVAILABLE_NOW
    batch_messages: int = BATCH_MESSAGES
    timeout_s: float = TIMEOUT_S
    retries: int = RETRIES
    consumer: str = ""
    checkpoint: str = ""
    master: str = ""
    packages: tuple[str, ...] = ()
    conf: Mapping[str, str] = field(default_factory=dict)
    folder: Path = Path()


# --- Reading -------------------------------------------------------------------------------------


def read_plan(text: TomlText) -> Plan:
    """The plan that the file describes. Raises `BadPlan`."""
    for name in text.values:
        if name not in TABLES:
            told = f"{text.where(name)}: there is no table [{name}]"
            raise BadPlan(f"{told}; {suggestion(name, TABLES)}")
    pipeline = _table(text, "pipeline")
    spark = _table(text, "spark")
    sources = tuple(_source(text, *each) for each in _list(text, "source"))
    steps = tuple(_step(text, *each) for each in _list(text, "step"))
    if not sources:
        raise BadPlan(f"{text.name}: nothing to read: add [[source]] with queue = …")
    views = _views(text, sources, steps)
    sinks = tuple(_sink(text, number, said, views) for number, said in _list(text, "sink"))
    if not sinks:
        raise BadPlan(f"{text.name}: nothing to write: add [[sink]] with queue = … or table = …")
    _refuse_second_place(text, sinks)
    _check_mode(text, pipeline, sources)
    return Plan(
        sources=sources,
        steps=steps,
        sinks=sinks,
        folder=Path(text.name).absolute().parent,
        **pipeline,
        **spark,
    )


def _table(text: TomlText, name: str) -> dict[str, Any]:
    said = text.values.get(name, {})
    if not isinstance(said, dict):
        raise BadPlan(f"{text.where(name)}: write [{name}] as a table")
    return _checked(text, name, (name,), said)


def _list(text: TomlText, name: str) -> list[tuple[int, dict[str, Any]]]:
    said = text.values.get(name, [])
    if not isinstance(said, list) or not all(isinstance(each, dict) for each in said):
        raise BadPlan(f"{text.where(name)}: write [[{name}]], since there may be several")
    return [
        (number, _checked(text, name, (name, number), each)) for number, each in enumerate(said)
    ]


def _checked(
    text: TomlText, table: str, place: tuple[str | int, ...], said: Mapping[str, Any]
) -> dict[str, Any]:
    keys = TABLES[table]
    for name in said:
        if name not in keys:
            told = f"{text.where(*place, name)}: there is no key {name!r} in [{table}]"
            raise BadPlan(f"{told}; {suggestion(name, keys)}")
    for name, key in keys.items():
        if key.is_required and name not in said:
            raise BadPlan(f"{text.where(*place)}: [{table}] needs {name}, {key.words}")
    return {name: _value(text, (*place, name), keys[name], value) for name, value in said.items()}


def _value(text: TomlText, place: tuple[str | int, ...], key: Key, said: Any) -> Any:
    try:
        return key.check(said)
    except (InvalidValue, ValueError) as wrong:
        reason = f" ({wrong})" if isinstance(wrong, InvalidValue) else ""
        shown = "" if key.may_hold_secret else f", not {str(said)[:80]!r}"
        told = f"{text.where(*place)}: {place[-1]} is {key.words}{shown}"
        raise BadPlan(told + reason) from wrong


def _source(text: TomlText, number: int, said: dict[str, Any]) -> Source:
    queue, payload = said["queue"], said.get("payload", "binary")
    name = said.get("name") or re.sub(r"\W", "_", queue)
    if not VIEW.fullmatch(name):
        told = f"{text.where('source', number)}: {queue!r} is no name for SQL"
        raise BadPlan(f"{told}: add name = …")
    if payload != "binary" and "schema" not in said:
        told = f"{text.where('source', number)}: payload = {payload!r} needs a schema"
        raise BadPlan(f"{told}, such as schema = 'id BIGINT, customer STRING'")
    if payload == "binary" and "schema" in said:
        told = f"{text.where('source', number, 'schema')}: a schema says what is in the payload"
        raise BadPlan(f"{told}: add payload = 'json', 'msgpack' or 'arrow'")
    chosen = ("group", "priority_min", "attributes", "partitions")
    selection = {key: said[key] for key in chosen if key in said}
    return Source(queue, name, payload, said.get("schema", ""), selection)


def _step(text: TomlText, number: int, said: dict[str, Any]) -> Step:
    if ("sql" in said) is ("function" in said):
        told = f"{text.where('step', number)}: step {said['name']!r}"
        raise BadPlan(f"{told} has either sql or function, and not both")
    return Step(
        said["name"], said.get("sql", ""), said.get("function", ""), said.get("cache", False)
    )


def _views(text: TomlText, sources: Iterable[Source], steps: Iterable[Step]) -> list[str]:
    """All names in their order; SQL does not tell capital letters from small ones."""
    views: list[str] = []
    places = [(("source", n), each.name) for n, each in enumerate(sources)]
    places += [(("step", n), each.name) for n, each in enumerate(steps)]
    for place, name in places:
        if name.lower() in (view.lower() for view in views):
            raise BadPlan(f"{text.where(*place)}: there is a {name!r} already; give another name")
        views.append(name)
    return views


def _sink(text: TomlText, number: int, said: dict[str, Any], views: list[str]) -> Sink:
    where = text.where("sink", number)
    if ("queue" in said) is ("table" in said):
        raise BadPlan(f"{where}: a [[sink]] has either queue or table, and not both")
    view = said.pop("from", views[-1])
    if view not in views:
        told = f"{text.where('sink', number, 'from')}: nothing here is called {view!r}"
        raise BadPlan(f"{told}; {suggestion(view, views)}")
    wrong = ("database", "dsn") if "queue" in said else ("payload",)
    for name in wrong:
        if name in said:
            other = "table" if "queue" in said else "queue"
            told = f"{text.where('sink', number, name)}: {name} goes with {other}"
            raise BadPlan(f"{told}, not with {'queue' if 'queue' in said else 'table'}")
    if "table" in said and "database" not in said:
        raise BadPlan(
            f"{where}: table {said['table']!r} needs database, the name by which the coordinator "
            "knows it: see `oncemq database add`"
        )
    return Sink(view, **said)


def _refuse_second_place(text: TomlText, sinks: Iterable[Sink]) -> None:
    seen: set[tuple[str, str]] = set()
    for number, sink in enumerate(sinks):
        if (sink.where, sink.view) in seen:
            told = f"{text.where('sink', number)}: {sink.view!r} goes to {sink.where} already"
            raise BadPlan(told)
        seen.add((sink.where, sink.view))


def _check_mode(text: TomlText, said: Mapping[str, Any], sources: tuple[Source, ...]) -> None:
    if said.get("mode", Mode.BATCH) is Mode.BATCH:
        for name in ("checkpoint", "consumer"):
            if name in said:
                told = f"{text.where('pipeline', name)}: {name} goes with mode = 'stream'"
                raise BadPlan(f"{told}; a batch needs none, since its queue knows how far it is")
        return
    if "checkpoint" not in said:
        told = f"{text.where('pipeline')}: mode = 'stream' needs checkpoint, a directory where"
        raise BadPlan(f"{told} Spark keeps how far it is")
    if len(sources) > 1:
        told = f"{text.where('source', 1)}: a stream has one [[source]]"
        raise BadPlan(f"{told}; mode = 'batch' may have several")
