"""Bodies are read alike by the short way and by the long one, and none makes us hold much."""

from __future__ import annotations

import tracemalloc
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from idl import wire

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary(),
    lambda inner: st.lists(inner).map(tuple) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)
FILLING = b"x" * (wire.TRUSTED_BYTES_MAX + 1)


def long_way(body: bytes) -> Any:
    try:
        return wire._unpack_much(body)
    except (ValueError, msgpack.UnpackException, TypeError):
        return wire.Unreadable


def found_in(body: bytes) -> Any:
    try:
        return wire.unpack(body)
    except wire.Unreadable:
        return wire.Unreadable


@pytest.mark.parametrize("filling", [b"", FILLING])
@pytest.mark.parametrize("count", [0, 1, 255, 256, 257, 1000])
def test_sequences_of_any_length_are_read(count: int, filling: bytes) -> None:
    plain = (tuple(range(count)), {str(key): key for key in range(count)}, filling)
    assert wire.unpack(wire.pack(plain)) == plain


@given(PLAIN)
def test_what_was_packed_is_unpacked(plain: Any) -> None:
    assert repr(wire.unpack(wire.pack((plain, FILLING)))) == repr((plain, FILLING))


@given(PLAIN, st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), min_size=1))
def test_both_ways_read_the_same(plain: Any, changes: list[tuple[int, int]]) -> None:
    changed = bytearray(wire.pack((FILLING[:1000], plain, FILLING[:100])))
    for position, value in changes:
        changed[position % len(changed)] = value
    body = bytes(changed)
    assert repr(found_in(body)) == repr(long_way(body))


@pytest.mark.parametrize("rest", [b"", b"\x01" * 200_000])
@pytest.mark.parametrize("depth", [340, 700, 1000, 5000])
@pytest.mark.parametrize("head", [b"\xdc\x01\x00", b"\xdc\xff\xff", b"\xdd\x00\x00\x01\x00"])
def test_what_is_announced_only_takes_little_memory(head: bytes, depth: int, rest: bytes) -> None:
    body = head * depth + rest
    tracemalloc.start()
    try:
        with pytest.raises(wire.Unreadable):
            wire.unpack(body)
        assert tracemalloc.get_traced_memory()[1] < 4 * 1024 * 1024
    finally:
        tracemalloc.stop()
