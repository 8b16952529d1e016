"""Which types of Spark a payload can hold. Refuses all others before any row is read or written.

    spark            json                          msgpack             arrow
    boolean          true, false                   boolean             as it is, all of these
    tinyint…bigint   number                        integer
    float, double    number; NaN and infinities    float
                     as "NaN", "Infinity", …
    decimal          text, exact                   text, exact
    string           text                          text
    binary           text in base64                bytes
    date             text: 2026-01-31              text
    timestamp        text with zone, in UTC:       the timestamp of msgpack (extension -1)
                     2026-01-31T12:00:00.000000Z
    timestamp_ntz    the same without zone         text
    array, struct    array, object                 array, map
    map              object; a key that is no      map
                     text is one                   a key may be an integer
    void             null                          nil
    interval         refused                       refused             interval day to second

The keys of a map are strings, integers or dates; those of a map in arrow may be anything.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from clients.spark.errors import SchemaError

INTEGERS = ("byte", "short", "integer", "long")
_PLAIN = frozenset(
    (*INTEGERS, "boolean", "float", "double", "decimal", "string", "binary", "date")
) | {"timestamp", "timestamp_ntz", "void"}
_KEYS = frozenset((*INTEGERS, "string", "date"))
_ATOMS = {"json": _PLAIN, "msgpack": _PLAIN, "arrow": _PLAIN | {"daytimeinterval"}}


def kind_of(found: DataType) -> str:
    """The name of the type without its parameters."""
    name = found.typeName()
    # The name of an interval tells its ends too.
    return "daytimeinterval" if type(found).__name__ == "DayTimeIntervalType" else name


def check_types(schema: StructType, payload_format: str) -> None:
    """Raises `SchemaError` for the first column that a payload of this format cannot hold."""
    for where, name, why in _wrong(schema, "", payload_format):
        raise SchemaError(f'the column "{where}" has the type {name}, {why}')


def _wrong(found: DataType, where: str, payload_format: str) -> Iterator[tuple[str, str, str]]:
    if isinstance(found, StructType):
        yield from _wrong_struct(found, where, payload_format)
    elif isinstance(found, ArrayType):
        yield from _wrong(found.elementType, where, payload_format)
    elif isinstance(found, MapType):
        if payload_format != "arrow" and kind_of(found.keyType) not in _KEYS:
            why = (
                f"and the keys of a map in {payload_format} are strings, integers or dates: cast "
                f"them, or write with payloadFormat arrow"
            )
            yield where, found.simpleString(), why
        yield from _wrong(found.keyType, where, payload_format)
        yield from _wrong(found.valueType, where, payload_format)
    elif kind_of(found) not in _ATOMS[payload_format]:
        why = f"which payloadFormat {payload_format} cannot hold: cast it, as in "
        yield where, found.simpleString(), why + f"cast({where} AS STRING), or drop it"


def _wrong_struct(
    found: StructType, where: str, payload_format: str
) -> Iterator[tuple[str, str, str]]:
    for position, each in enumerate(found):
        inner = f"{where}.{each.name}" if where else each.name
        if each.name in found.names[:position]:
            why = "and the name stands twice in its struct: rename one of them"
            yield inner, each.dataType.simpleString(), why
        yield from _wrong(each.dataType, inner, payload_format)
