"""The names of transactions: who can make one, what is in it, and what is refused."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idl import otids
from idl.cos import otid_t
from idl.mapping import InvalidValue
from idl.otids import (
    BLOCK_NUMBERS,
    FORMAT_ID,
    GTRID_BYTES,
    IDENTITY_BYTES,
    NULL_OTID,
    PREFIX_BYTES,
    SECRET_BYTES,
    TAG_BYTES,
    Block,
    Gtrid,
    block_secret,
    check_branch,
    decode_gtrid,
    is_issued,
    is_shared,
    issue,
    member_name,
    otid_of,
    parse_shown,
    prefix_of,
    shared_secret,
    show,
    split_member,
    split_otid,
)
from tests.byte_tables import check_table, tables_of

SECRET = b"sixteen bytes..."
IDENTITY = b"we are 1"
PREFIX = prefix_of(IDENTITY, 3)

numbers = st.integers(0, 2**64 - 1)
gtrids = st.binary(min_size=GTRID_BYTES, max_size=GTRID_BYTES)
branches = st.from_regex(r"[A-Za-z0-9._-]{1,64}", fullmatch=True)
BAD_BRANCHES = ["a/b", "a b", "ä", "a\n", "x" * 65, "a@b", "\0"]


def _issued(number: int, prefix: bytes = PREFIX) -> bytes:
    return issue(prefix, block_secret(SECRET, number), number)


# --- Issuing -------------------------------------------------------------------------------------


@given(numbers)
def test_a_name_that_was_issued_is_known_to_be(number: int) -> None:
    name = decode_gtrid(_issued(number))
    assert (name.identity, name.incarnation, name.number) == (IDENTITY, 3, number)
    assert is_issued(name, SECRET)
    assert not is_issued(name, b"another secret..")


@given(numbers, numbers)
def test_a_block_issues_the_same_names_again_and_again(first: int, second: int) -> None:
    block = Block(PREFIX, SECRET)
    for number in (first, second, first):
        assert block.issue(number) == issue(PREFIX, SECRET, number)


@given(numbers, st.integers(0, 8 * GTRID_BYTES - 1))
def test_a_name_with_any_bit_changed_was_not_issued(number: int, bit: int) -> None:
    changed = int.from_bytes(_issued(number)) ^ 1 << bit
    assert not is_issued(decode_gtrid(changed.to_bytes(GTRID_BYTES)), SECRET)


@given(numbers, numbers)
def test_a_block_has_one_secret_and_no_other_block_has_it(one: int, other: int) -> None:
    is_same_block = one // BLOCK_NUMBERS == other // BLOCK_NUMBERS
    assert (block_secret(SECRET, one) == block_secret(SECRET, other)) == is_same_block


def test_the_first_and_the_last_number_of_a_block_share_its_secret() -> None:
    secrets = [block_secret(SECRET, number) for number in (1023, 1024, 2047, 2048)]
    assert secrets[1] == secrets[2]
    assert len(set(secrets)) == 3
    assert {len(secret) for secret in secrets} == {SECRET_BYTES}


def test_names_that_clients_share_are_told_from_all_others() -> None:
    secret = block_secret(SECRET, BLOCK_NUMBERS)
    shared = decode_gtrid(issue(PREFIX, shared_secret(secret), BLOCK_NUMBERS))
    other = decode_gtrid(issue(PREFIX, secret, BLOCK_NUMBERS))
    assert is_shared(shared, SECRET)
    assert not is_issued(shared, SECRET)
    assert is_issued(other, SECRET)
    assert not is_shared(other, SECRET)
    assert not is_shared(shared._replace(number=BLOCK_NUMBERS + 1), SECRET)


def test_a_secret_of_one_block_makes_no_name_of_another() -> None:
    forged = issue(PREFIX, block_secret(SECRET, 0), BLOCK_NUMBERS)
    assert not is_issued(decode_gtrid(forged), SECRET)


def test_a_tag_is_good_for_one_coordinator_and_one_incarnation() -> None:
    name = decode_gtrid(_issued(5))
    assert not is_issued(name._replace(incarnation=4), SECRET)
    assert not is_issued(name._replace(identity=b"they are"), SECRET)


@given(st.lists(st.tuples(st.integers(0, 2**32 - 1), numbers), max_size=8))
def test_names_sort_in_the_order_of_issue(issued: list[tuple[int, int]]) -> None:
    names = [_issued(number, prefix_of(IDENTITY, start)) for start, number in sorted(issued)]
    assert names == sorted(names)


# --- The bytes -----------------------------------------------------------------------------------


@given(gtrids)
def test_a_name_is_the_same_after_it_was_taken_apart(gtrid: bytes) -> None:
    assert decode_gtrid(gtrid).encoded() == gtrid


def test_the_table_of_bytes_is_true() -> None:
    (table,) = tables_of(otids)
    packed = struct.Struct(">" + "".join(row.code for row in table))
    check_table(table, packed)
    name = Gtrid(IDENTITY, 1, 2, b"t" * TAG_BYTES)
    assert packed.pack(*name) == name.encoded()


def test_the_parts_of_a_name_have_their_sizes() -> None:
    name = Gtrid(b"i" * IDENTITY_BYTES, 1, 2, b"t" * TAG_BYTES).encoded()
    assert name == b"i" * 8 + bytes([0, 0, 0, 1]) + bytes(7) + b"\2" + b"t" * 12
    assert (len(name), len(PREFIX)) == (GTRID_BYTES, PREFIX_BYTES)


@pytest.mark.parametrize("size", [0, 1, GTRID_BYTES - 1, GTRID_BYTES + 1, 64])
def test_what_has_another_size_is_no_name(size: int) -> None:
    with pytest.raises(InvalidValue, match=f"32 bytes, not {size}"):
        decode_gtrid(bytes(size))


# --- Otids ---------------------------------------------------------------------------------------


@given(gtrids, st.just("") | branches)
def test_an_otid_says_which_transaction_and_which_branch(gtrid: bytes, branch: str) -> None:
    otid = otid_of(gtrid, branch)
    assert (otid.formatID, otid.bqual_length) == (FORMAT_ID, len(branch))
    assert split_otid(otid) == (gtrid, branch)


@pytest.mark.parametrize(
    ("format_id", "length", "tid"),
    [
        (NULL_OTID.formatID, NULL_OTID.bqual_length, NULL_OTID.tid),
        (FORMAT_ID + 1, 0, bytes(GTRID_BYTES)),
        (FORMAT_ID, 0, b""),
        (FORMAT_ID, 0, bytes(GTRID_BYTES - 1)),
        (FORMAT_ID, 0, bytes(GTRID_BYTES + 1)),
        (FORMAT_ID, 1, bytes(GTRID_BYTES)),
        (FORMAT_ID, -1, bytes(GTRID_BYTES)),
        (FORMAT_ID, -1, bytes(GTRID_BYTES + 1)),
        (FORMAT_ID, 2**31 - 1, bytes(GTRID_BYTES)),
        (FORMAT_ID, 1, bytes(GTRID_BYTES) + b"/"),
        (FORMAT_ID, 2, bytes(GTRID_BYTES) + "ä".encode()),
        (FORMAT_ID, 65, bytes(GTRID_BYTES) + b"x" * 65),
    ],
)
def test_an_otid_that_is_not_one_of_ours_is_refused(
    format_id: int, length: int, tid: bytes
) -> None:
    with pytest.raises(InvalidValue):
        split_otid(otid_t(format_id, length, tid))


@given(st.integers(-2, 70), st.binary(max_size=100))
def test_any_other_otid_is_taken_apart_as_it_was_made_or_refused(length: int, tid: bytes) -> None:
    try:
        gtrid, branch = split_otid(otid_t(FORMAT_ID, length, tid))
    except InvalidValue:
        return
    assert otid_of(gtrid, branch) == otid_t(FORMAT_ID, length, tid)


# --- Branches and objects ------------------------------------------------------------------------


@given(branches)
def test_a_branch_may_have_a_plain_name(name: str) -> None:
    assert check_branch(name) == name


@pytest.mark.parametrize("name", ["", *BAD_BRANCHES])
def test_a_branch_may_not_have_any_other_name(name: str) -> None:
    with pytest.raises(InvalidValue, match="branch name"):
        check_branch(name)


@given(st.sampled_from([otids.RECOVERY, otids.BRANCH, otids.SETTLER]), gtrids, branches)
def test_an_object_is_found_by_its_transaction_and_branch(
    family: str, gtrid: bytes, branch: str
) -> None:
    for each in ("", branch):
        found, _, rest = member_name(family, gtrid, each).partition("/")
        assert found == family
        assert split_member(rest) == (gtrid, each)


@pytest.mark.parametrize(
    "rest",
    ["", "/", "store", "00", "zz" * 32, "00" * 31, "00" * 33, "0" * 63, f"{'00' * 31}/store"]
    + [f"{'00' * 32}/{name}" for name in BAD_BRANCHES],
)
def test_an_object_that_belongs_to_no_transaction_is_refused(rest: str) -> None:
    with pytest.raises(InvalidValue):
        split_member(rest)


# --- For people ----------------------------------------------------------------------------------


def test_a_name_is_shown_with_its_incarnation_and_its_number() -> None:
    name = Gtrid(b"\0\1\2\3\4\5\6\7", 3, 1234, b"\xff" * TAG_BYTES).encoded()
    assert show(name) == f"0001020304050607-3-1234-{'ff' * 12}"


@given(gtrids)
def test_a_name_that_was_shown_can_be_typed_in_again(gtrid: bytes) -> None:
    assert parse_shown(show(gtrid)) == gtrid


def _shown(
    identity: str = "00" * 8, start: str = "1", number: str = "2", tag: str = "00" * 12
) -> str:
    return f"{identity}-{start}-{number}-{tag}"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-",
        "---",
        "store",
        _shown() + "-",
        _shown().replace("-", " "),
        _shown(identity="xx" * 8),
        _shown(identity="00" * 7),
        _shown(identity="00" * 9),
        _shown(identity="0" * 15),
        _shown(start="one"),
        _shown(start="-1"),
        _shown(start=str(2**32)),
        _shown(number=str(2**64)),
        _shown(number=""),
        _shown(number="9" * 5000),
        _shown(tag="00" * 11),
        _shown(tag="00" * 13),
        _shown(tag=""),
    ],
    ids=lambda text: text[:60],
)
def test_what_was_not_shown_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue, match="is not a transaction's name"):
        parse_shown(text)
