"""Which messages are meant, as SQL: a selection becomes conditions, and conditions a list of keys.

A statement depends on the shape of a selection only, so that it is built once and used for all that
look alike; the values are bound parameters, always. The text of `Selection.where` comes from the
query language and holds no values; it is taken as it is, but for its question marks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from sqlalchemy import (
    CTE,
    ColumnElement,
    Select,
    TextClause,
    bindparam,
    select,
    text,
    union_all,
)

from mqserver.storage.contract import Selection
from mqserver.storage.sql.schema import (
    ENQUEUED,
    IS_FREE,
    IS_HELD,
    body,
    message,
    queue,
    to_text,
    wait,
)
from mqserver.storage.sql.vendor import Vendor

# How many shapes of selections a storage keeps its statements for.
SHAPES_MAX = 256

# What stands in quotes is passed over, so that a question mark in it is no parameter.
_PARAMETER = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|\?""")

# The number of the queue that is named by the parameter `in_queue`.
QUEUE_ID = select(queue.c.id).where(queue.c.name == bindparam("in_queue")).scalar_subquery()


class Shape(NamedTuple):
    """All of a selection that its statement depends on."""

    has_group: bool
    attributes: int
    where: str


def shape_of(selection: Selection) -> Shape:
    """The shape of the selection."""
    return Shape(selection.group != 0, len(selection.attributes), selection.where)


def parameters(vendor: Vendor, selection: Selection) -> dict[str, object]:
    """The values that belong to the `conditions` of the selection's shape."""
    values: dict[str, object] = {"least_priority": selection.priority_min}
    if selection.group:
        values["in_group"] = selection.group
    for number, (name, value) in enumerate(selection.attributes):
        values[f"attribute_{number}"] = vendor.attribute(to_text(name), to_text(value))
    for number, parameter in enumerate(selection.parameters):
        bound = to_text(parameter) if isinstance(parameter, str) else parameter
        values[f"where_{number}"] = bound
    if selection.where.count("?") < len(selection.parameters):
        raise ValueError("the condition has fewer question marks than there are parameters")
    return values


def conditions(vendor: Vendor, shape: Shape) -> Iterator[ColumnElement[bool] | TextClause]:
    """What a selection of this shape says of a message and its body."""
    yield message.c.priority >= bindparam("least_priority")
    if shape.has_group:
        yield message.c.group == bindparam("in_group")
    for number in range(shape.attributes):
        yield vendor.has_attribute(f"attribute_{number}")
    if shape.where:
        yield _where(shape.where)


def with_bodies(*columns: ColumnElement[Any]) -> Select[Any]:
    """These columns of the messages and their bodies."""
    return select(*columns).join_from(message, body, message.c.key == body.c.message_key)


def picked(vendor: Vendor, shape: Shape, with_own: bool = False) -> CTE:
    """The keys and ranks of the next messages that are free, in the order of the queue.

    They are locked, and what others have locked is passed over. With its own, what the branch has
    stored itself is free for it too. The parameters are `in_queue`, `limit`, and then `by_branch`.
    """
    # Those who wait for a message by its key are served before those who take any.
    awaited = select(wait.c.key).where(wait.c.until_s > vendor.now_s())
    free = _first(vendor, shape, IS_FREE, message.c.key.not_in(awaited))
    free = free.with_for_update(skip_locked=True, of=message)
    if not with_own:
        return free.cte("picked")
    is_own = message.c.vsf == bindparam("by_branch"), message.c.lsf == ENQUEUED
    own = _first(vendor, shape, IS_HELD, *is_own)
    both = union_all(select(free.subquery()), select(own.subquery())).subquery("both")
    return select(both).order_by(*_order(both.c)).limit(bindparam("limit")).cte("picked")


def _first(vendor: Vendor, shape: Shape, *state: ColumnElement[bool]) -> Select[Any]:
    columns = message.c.key, message.c.rank
    needs_body = shape.attributes or shape.where
    found = with_bodies(*columns) if needs_body else select(*columns)
    return (
        found.where(message.c.queue == QUEUE_ID, *state, *conditions(vendor, shape))
        .order_by(*_order(message.c))
        .limit(bindparam("limit"))
    )


def _order(columns: Any) -> tuple[ColumnElement[Any], ...]:
    return columns.rank.desc(), columns.key


def _where(condition: str) -> TextClause:
    """The condition with a bound parameter for each question mark."""
    count = 0

    def name(found: re.Match[str]) -> str:
        nonlocal count
        if found[0] != "?":
            return found[0]
        count += 1
        return f":where_{count - 1}"

    # A colon would begin a parameter in the text of SQLAlchemy.
    return text(f"({_PARAMETER.sub(name, condition.replace(':', chr(92) + ':'))})")
