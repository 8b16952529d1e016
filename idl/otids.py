"""The names of transactions: what is in an otid, who can make one, and where its objects are.

    offset  code  size  field
    0x00    8s    8     identity of the coordinator, made with its log
    0x08    I     4     incarnation: how often the coordinator had been started
    0x0c    Q     8     number of the transaction in this incarnation
    0x14    12s   12    tag, by which the coordinator knows that it issued the number

All numbers are big-endian, so that names sort in the order of issue. Behind them stands, as the
branch qualifier, the name of a branch. The tag of a number is made from a secret of its block;
a client that was given a block makes its names without asking, and nobody can make those of
another. Pure: secrets come from whoever has them.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import re
import struct
from typing import NamedTuple

from idl.cos import otid_t
from idl.mapping import InvalidValue

FORMAT_ID = 0x4F4D51
NULL_OTID = otid_t(-1, 0, b"")
BLOCK_NUMBERS = 1024
IDENTITY_BYTES = 8
SECRET_BYTES = 16
TAG_BYTES = 12

_GTRID = struct.Struct(">8sIQ12s")
_PREFIX = struct.Struct(">8sI")
_NUMBER = struct.Struct(">Q")
_is_branch = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII).fullmatch

_blake2b = hashlib.blake2b
_pack_number = _NUMBER.pack

PREFIX_BYTES = _PREFIX.size
GTRID_BYTES = _GTRID.size

assert GTRID_BYTES == 0x20


class Gtrid(NamedTuple):
    """The name of a transaction, in its parts."""

    identity: bytes
    incarnation: int
    number: int
    tag: bytes

    def encoded(self) -> bytes:
        """The name as bytes."""
        return _GTRID.pack(*self)


def decode_gtrid(data: bytes) -> Gtrid:
    """The parts of a name; raises `InvalidValue` for what is no name of ours."""
    _check_length(data)
    return Gtrid(*_GTRID.unpack(data))


def number_of(gtrid: bytes) -> int:
    """The number of the transaction in its incarnation."""
    _check_length(gtrid)
    number: int = _GTRID.unpack(gtrid)[2]
    return number


def _check_length(gtrid: bytes) -> None:
    if len(gtrid) != GTRID_BYTES:
        raise InvalidValue(f"a transaction's name has {GTRID_BYTES} bytes, not {len(gtrid)}")


# --- Issuing -------------------------------------------------------------------------------------


def prefix_of(identity: bytes, incarnation: int) -> bytes:
    """What all names of one incarnation begin with."""
    return _PREFIX.pack(identity, incarnation)


def block_secret(incarnation_secret: bytes, number: int) -> bytes:
    """The secret of the block to which the number belongs."""
    first = number - number % BLOCK_NUMBERS
    return _keyed(incarnation_secret, _NUMBER.pack(first), SECRET_BYTES)


def shared_secret(secret: bytes) -> bytes:
    """What makes, in the block with this secret, the names of transactions that only decisions end.

    Clients share them by their names, and none of their commits is left to a participant.
    """
    return _keyed(secret, b"shared", SECRET_BYTES)


def issue(prefix: bytes, secret: bytes, number: int) -> bytes:
    """The name with this number, made with the secret of its block."""
    named = prefix + _NUMBER.pack(number)
    return named + _blake2b(named, key=secret, digest_size=TAG_BYTES).digest()


class Block:
    """Issues names of one block, as `issue` does; what they have in common is digested once."""

    __slots__ = ("_begun", "_prefix")

    def __init__(self, prefix: bytes, secret: bytes) -> None:
        self._prefix = prefix
        self._begun = _blake2b(prefix, key=secret, digest_size=TAG_BYTES)

    def issue(self, number: int) -> bytes:
        """The name with this number, which belongs to the block."""
        written = _pack_number(number)
        digest = self._begun.copy()
        digest.update(written)
        return self._prefix + written + digest.digest()


def is_issued(gtrid: Gtrid, incarnation_secret: bytes) -> bool:
    """Whether the name was made with the secret of its block."""
    return is_of_block(gtrid.encoded(), block_secret(incarnation_secret, gtrid.number))


def is_shared(gtrid: Gtrid, incarnation_secret: bytes) -> bool:
    """Whether it is the name of a transaction that only decisions end."""
    secret = shared_secret(block_secret(incarnation_secret, gtrid.number))
    return is_of_block(gtrid.encoded(), secret)


def is_of_block(gtrid: bytes, secret: bytes) -> bool:
    """Whether the name was made with this secret, of the block to which its number belongs."""
    made = _keyed(secret, gtrid[:-TAG_BYTES], TAG_BYTES)
    return hmac.compare_digest(made, gtrid[-TAG_BYTES:])


def _keyed(key: bytes, data: bytes, size: int) -> bytes:
    return _blake2b(data, key=key, digest_size=size).digest()


def is_of_coordinator(gtrid: bytes) -> bool:
    """Whether the coordinator has named it itself: blocks of clients have even numbers."""
    return number_of(gtrid) // BLOCK_NUMBERS % 2 == 1


# --- Otids and branches --------------------------------------------------------------------------


# A transaction is named in several calls, one soon after the other.
@functools.lru_cache(maxsize=256)
def otid_of(gtrid: bytes, branch: str = "") -> otid_t:
    """The otid of a transaction, or of one branch of it."""
    qualifier = branch.encode("ascii")
    return otid_t(FORMAT_ID, len(qualifier), gtrid + qualifier)


def split_otid(otid: otid_t) -> tuple[bytes, str]:
    """Transaction and branch of an otid; raises `InvalidValue` for one that is not ours."""
    if otid.formatID != FORMAT_ID:
        raise InvalidValue(f"otid of format {otid.formatID}: not one of this transaction service")
    if not otid.bqual_length and len(otid.tid) == GTRID_BYTES:
        return otid.tid, ""
    end = len(otid.tid) - otid.bqual_length
    gtrid, qualifier = otid.tid[:end], otid.tid[end:]
    _check_length(gtrid)
    try:
        branch = qualifier.decode("ascii")
    except UnicodeDecodeError:
        raise InvalidValue("otid: its branch qualifier is not a name") from None
    return gtrid, check_branch(branch) if branch else ""


# The same few names come again and again.
@functools.lru_cache(maxsize=1024)
def check_branch(name: str) -> str:
    """The name itself, when a branch can have it."""
    if not _is_branch(name):
        raise InvalidValue(
            f"branch name {name[:60]!r}: use 1 to 64 letters, digits, dots, hyphens and underscores"
        )
    return name


# --- Objects that belong to a transaction --------------------------------------------------------

# Families of objects that the one program gives out and the other finds by the name: whom a branch
# asks for the outcome, and whom if a mark decides; the branch itself, and what makes the commits of
# a node durable.
RECOVERY = "recovery"
MARKED = "marked"
BRANCH = "branch"
SETTLER = "settler"


def member_name(family: str, gtrid: bytes, branch: str = "") -> str:
    """The name of the object of this kind that belongs to the transaction, or to its branch."""
    return f"{family}/{gtrid.hex()}/{branch}" if branch else f"{family}/{gtrid.hex()}"


def split_member(rest: str) -> tuple[bytes, str]:
    """Transaction and branch from what stands behind the family in an object's name."""
    text, _, branch = rest.partition("/")
    try:
        gtrid = bytes.fromhex(text)
    except ValueError:
        raise InvalidValue(f"object name {rest[:60]!r} does not name a transaction") from None
    _check_length(gtrid)
    return gtrid, check_branch(branch) if branch else ""


def show(gtrid: bytes) -> str:
    """A name as operators read and type it: incarnation and number, then the tag."""
    parts = decode_gtrid(gtrid)
    return f"{parts.identity.hex()}-{parts.incarnation}-{parts.number}-{parts.tag.hex()}"


def parse_shown(text: str) -> bytes:
    """The name from what `show` made of it."""
    try:
        identity, incarnation, number, tag = text.split("-")
        made = Gtrid(
            bytes.fromhex(identity), int(incarnation), int(number), bytes.fromhex(tag)
        ).encoded()
    except (ValueError, struct.error):
        made = b""
    # What would be shown otherwise was mistyped: it must not become another one's name.
    if not made or show(made) != text.lower():
        raise InvalidValue(f"{text[:80]!r} is not a transaction's name")
    return made
