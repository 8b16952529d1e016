"""Places where transactions are decided: what an address becomes, and comes back as."""

from __future__ import annotations

import pytest

from idl.call import check_object_name
from idl.databases import branch_name, check_place, mark_of
from idl.mapping import InvalidValue
from idl.otids import GTRID_BYTES, MARKED, member_name
from idl.places import PLACE_LENGTH_MAX, is_node, node_at, place_of

ADDRESSES = [
    ("127.0.0.1", 7411),
    ("::1", 7411),
    ("fe80::1:2", 1),
    ("localhost", 65535),
    ("in-process", 0),
    ("node_1.prod.example.com", 80),
    ("xn--bcher-kva.example", 7411),
]


@pytest.mark.parametrize(("host", "port"), ADDRESSES)
def test_a_node_is_found_again_by_its_place(host: str, port: int) -> None:
    place = place_of(host, port)
    assert is_node(place)
    assert node_at(place) == (host, port)
    assert check_place(place) == place


@pytest.mark.parametrize(("host", "port"), ADDRESSES)
def test_a_place_fits_into_the_names_that_hold_it(host: str, port: int) -> None:
    place = place_of(host, port)
    check_object_name(member_name(f"{MARKED}/{place}", bytes(GTRID_BYTES), "n1"))
    assert mark_of(branch_name(1, place)) == place


@pytest.mark.parametrize("host", ["fe80::1%eth0", "-bad", "x" * PLACE_LENGTH_MAX, "a%b"])
def test_an_address_that_does_not_fit_has_no_place(host: str) -> None:
    assert place_of(host, 7411) == ""


@pytest.mark.parametrize(
    "place",
    ["node.", "node._1", "node.host", "node.host_", "node.host_x", "node.host_123456", "node.h_01"],
)
def test_what_names_no_node_is_refused(place: str) -> None:
    with pytest.raises(InvalidValue):
        check_place(place)


def test_a_database_is_no_node() -> None:
    assert not is_node("orders")
    assert check_place("orders") == "orders"
