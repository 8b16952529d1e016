"""Checksums are those of zlib, whoever computes them: what is on disk must outlive the library."""

import sys
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idl import checksums


@given(st.binary(max_size=2 * checksums.MUCH_BYTES), st.integers(0, 2**32 - 1))
def test_checksums_are_those_of_zlib(data: bytes, before: int) -> None:
    assert checksums.crc32(data) == zlib.crc32(data)
    assert checksums.crc32(data, before) == zlib.crc32(data, before)


@pytest.mark.parametrize("size", [0, 1, 15, 4096, 1_000_003])
def test_views_and_long_data_are_summed_up_alike(size: int) -> None:
    data = bytes(range(251)) * (size // 251 + 1)
    view = memoryview(bytearray(data))[:size]
    assert checksums.crc32(view, 7) == zlib.crc32(view, 7)


@pytest.fixture
def machine_without_isal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "isal.isal_zlib", None)
    monkeypatch.delitem(sys.modules, "idl.checksums")


@pytest.mark.usefixtures("machine_without_isal")
def test_zlib_does_where_isal_is_not_to_be_had() -> None:
    from idl.checksums import crc32

    assert crc32 is zlib.crc32


@pytest.mark.parametrize("count", [1, 7, checksums.MANY])
@pytest.mark.parametrize("size", [0, 1, 100, checksums.MUCH_BYTES])
def test_many_are_summed_up_each_by_itself(size: int, count: int) -> None:
    pieces = [bytes([place]) * size for place in range(count)]
    assert checksums.crc32_of_each(pieces) == tuple(zlib.crc32(piece) for piece in pieces)
    assert checksums.crc32_of_each(()) == ()


@pytest.mark.parametrize("given", [None, 1, "text"])
def test_what_is_no_bytes_has_no_sum(given: object) -> None:
    with pytest.raises(TypeError):
        checksums.crc32(given)  # type: ignore[arg-type]
