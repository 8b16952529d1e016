"""Dates and times of Arrow as texts and numbers. Whole columns, whatever zone the session has.

Written are the years 1 to 9999, which every reader knows.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from clients.spark.errors import PayloadError

_DAY_US = 86_400_000_000
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896


def texts_of_dates(column: pa.Array) -> pa.Array:
    """Each day as in 2026-01-31."""
    _check(column.cast(pa.int32()), _FIRST_DAY, _LAST_DAY)
    return column.cast(pa.string())


def texts_of_times(column: pa.Array) -> pa.Array:
    """Each time as in 2026-01-31T12:00:00.000000, in UTC if it is an instant."""
    texts = microseconds_of(column).cast(pa.timestamp("us")).cast(pa.string())
    return pc.binary_replace_slice(texts, 10, 11, "T")


def microseconds_of(column: pa.Array) -> pa.Array:
    """Each time as its distance from the beginning of 1970."""
    numbers = column.cast(pa.int64())
    _check(numbers, _FIRST_DAY * _DAY_US, (_LAST_DAY + 1) * _DAY_US - 1)
    return numbers


def _check(numbers: pa.Array, low: int, high: int) -> None:
    ends = pc.min_max(numbers).as_py()
    if ends["min"] is not None and not low <= ends["min"] <= ends["max"] <= high:
        raise PayloadError(
            "a date or time lies outside of the years 1 to 9999, which a payload cannot hold: "
            "correct or filter such rows"
        )
