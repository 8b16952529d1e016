"""Checksums that are taken by another thread, or by whoever wants them first."""

from __future__ import annotations

import zlib

from mqserver.storage.sums import APART_BYTES_MIN, WAITING_MAX, Sum, Summing

LARGE = bytes(range(256)) * (APART_BYTES_MIN // 256)


def test_a_sum_is_that_of_the_payload_however_often_it_is_asked_for() -> None:
    begun = Sum(b"payload")
    assert [begun.value(), begun.value()] == [zlib.crc32(b"payload")] * 2


def test_sums_of_small_and_large_payloads_are_right() -> None:
    summing = Summing()
    payloads = [b"", b"small", LARGE, LARGE + b"more"]
    assert [summing.begin(p).value() for p in payloads] == [zlib.crc32(p) for p in payloads]


def test_payloads_that_nobody_asks_for_do_not_pile_up() -> None:
    summing = Summing()
    # As if the helper had just gone: nobody but the caller sums up.
    summing._has_helper = True
    begun = [summing.begin(LARGE) for _ in range(WAITING_MAX + 3)]
    assert [bool(each._payload) for each in begun] == [False] * 3 + [True] * WAITING_MAX
    assert {each.value() for each in begun} == {zlib.crc32(LARGE)}
